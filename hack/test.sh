#!/usr/bin/env bash
# Makes the first of the given targets, and then the others, two at a time, because tests
# on clusters wait much of their time. A target that fails keeps no other from being made.
# What one of the others prints is shown when it has ended.
# At the end it prints the result and the duration of each target, and fails if one of
# them failed.
#
#   hack/test.sh <target>...
set -uo pipefail
cd "$(dirname "$0")/.."

rm -rf dist/test
mkdir -p dist/test

# run makes a target, and writes down its result and its duration.
run() {
	local start=$SECONDS result=passed
	"${MAKE:-make}" --no-print-directory "$1" || result=FAILED
	printf '%-16s %s after %d s\n' "$1" "$result" "$((SECONDS - start))" >>dist/test/parts
}

# aside runs a command in the background, in a process group of its own that ends with this
# script.
asides=()
trap 'for group in "${asides[@]}"; do kill -- "-$group" 2>/dev/null; done' EXIT
aside() {
	set -m
	"$@" </dev/null &
	asides+=("$!")
	set +m
}

# While the first target waits, and with the least priority, the tests of the others are compiled.
aside nice -n 19 "${MAKE:-make}" --no-print-directory race-build >dist/test/race-build 2>&1
echo "=== make $1"
run "$1"
shift
kill -0 "${asides[0]}" 2>/dev/null && echo "=== compiling the tests"
wait "${asides[0]}" # what does not compile is an error of its target too

# worker makes targets that nobody has begun yet.
worker() {
	local target
	for target in "$@"; do
		mkdir "dist/test/$target" 2>/dev/null || continue
		echo "=== make $target has begun"
		run "$target" >"dist/test/$target/log" 2>&1
		echo "=== make $target"
		cat "dist/test/$target/log"
	done
}
aside worker "$@"
aside worker "$@"
wait

# count <action> counts the tests with this result, without their subtests.
count() {
	cat dist/test/*.json 2>/dev/null | grep -cE "\"Action\":\"$1\".*\"Test\":\"[^/\"]+\"" || true
}
echo "=== parts of make test"
cat dist/test/parts
echo "$(count pass) passed, $(count fail) failed, $(count skip) skipped"
! grep -q ' FAILED ' dist/test/parts

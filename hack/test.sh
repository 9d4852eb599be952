#!/usr/bin/env bash
# Makes a target, and then others in lanes: the targets of a lane run one after the other,
# also after one has failed, and lanes run side by side, because tests on clusters wait
# much of their time. What a lane but the first prints is shown when the first has ended.
# At the end it prints the result and the duration of each target, and fails if one of
# them failed.
#
#   hack/test.sh <target> '<target>...'...
set -uo pipefail
cd "$(dirname "$0")/.."

rm -rf dist/test
mkdir -p dist/test

# lane makes its targets, and writes down the result and the duration of each.
lane() {
	local target start result
	for target in "$@"; do
		echo "=== make $target"
		start=$SECONDS result=passed
		"${MAKE:-make}" --no-print-directory "$target" || result=FAILED
		printf '%-16s %s after %d s\n' "$target" "$result" "$((SECONDS - start))" >>dist/test/parts
	done
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
lane "$1"
shift
kill -0 "${asides[0]}" 2>/dev/null && echo "=== compiling the tests"
wait "${asides[0]}" # what does not compile is an error of its target too
for targets in "${@:2}"; do
	# shellcheck disable=SC2086 # one argument for each target
	aside lane $targets >"dist/test/lane-${targets%% *}" 2>&1
done
# shellcheck disable=SC2086
lane $1
wait
for targets in "${@:2}"; do cat "dist/test/lane-${targets%% *}"; done

# count <action> counts the tests with this result, without their subtests.
count() {
	cat dist/test/*.json 2>/dev/null | grep -cE "\"Action\":\"$1\".*\"Test\":\"[^/\"]+\"" || true
}
echo "=== parts of make test"
cat dist/test/parts
echo "$(count pass) passed, $(count fail) failed, $(count skip) skipped"
! grep -q ' FAILED ' dist/test/parts

#!/usr/bin/env bash
# Makes the first of the given targets, and then the others, two at a time, because tests
# on clusters wait much of their time. A target that fails keeps no other from being made.
# The output of each of the others is shown when that target has ended.
# At the end it prints the result and the duration of each target, and fails unless all of
# them have passed. Without SHORT=-short, which is make test, it also prints one line of
# result with the commit and the machine, and keeps it in dist/test/result.
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
# script. A group that has ended by itself is no longer in asides: its number may be
# another's by now.
asides=()
trap 'for group in ${asides[@]+"${asides[@]}"}; do kill -- "-$group" 2>/dev/null; done' EXIT
trap 'trap "" INT TERM; exit 1' INT TERM # a second signal must not end what ends the groups
aside() {
	set -m
	"$@" </dev/null &
	asides+=("$!")
	set +m
}

# While the first target waits, and with the least priority, tests that need the race
# detector are compiled.
aside nice -n 19 "${MAKE:-make}" --no-print-directory race-build >dist/test/race-build 2>&1
echo "=== make $1"
aside run "$1"
wait "${asides[1]}"
kill -0 "${asides[0]}" 2>/dev/null && echo "=== compiling the tests"
wait "${asides[0]}" # what does not compile is an error of its target too
asides=()

# worker makes those of its targets that no other worker has begun.
worker() {
	local target
	for target in "$@"; do
		mkdir "dist/test/$target" 2>/dev/null || continue
		echo "=== make $target has begun"
		run "$target" >"dist/test/$target/log" 2>&1
		until mkdir dist/test/printing 2>/dev/null || [ ! -d dist/test ]; do sleep 0.1; done
		echo "=== make $target"
		cat "dist/test/$target/log"
		rmdir dist/test/printing
	done
}
targets=("$@")
aside worker "${@:2}"
aside worker "${@:2}"
wait
asides=()

# count <action> counts the tests with this result, without their subtests.
count() {
	cat dist/test/*.json 2>/dev/null | grep -cE "\"Action\":\"$1\".*\"Test\":\"[^/\"]+\"" || true
}
result="$(count pass) passed, $(count fail) failed, $(count skip) skipped"
echo "=== parts"
cat dist/test/parts
echo "$result"
failed=0
for target in "${targets[@]}"; do
	grep -q "^$target  *passed " dist/test/parts || { echo "$target has not passed" && failed=1; }
done

# machine prints how many processors there are, of which model, and how much memory.
machine() {
	case $(uname) in
	Linux) awk -F ': *' '/^model name/ { n++; model = $2 } END { printf "%d CPUs (%s)", n, model }' /proc/cpuinfo && awk '/^MemTotal/ { printf ", %.0f GiB", $2 / 1048576 }' /proc/meminfo ;;
	Darwin) printf '%d CPUs (%s), %d GiB' "$(sysctl -n hw.ncpu)" "$(sysctl -n machdep.cpu.brand_string)" "$(($(sysctl -n hw.memsize) >> 30))" ;;
	esac
}
if [ -z "${SHORT:-}" ]; then
	changed=
	[ -z "$(git --no-optional-locks status --porcelain)" ] || changed=" with changes"
	[ "$failed" = 0 ] || result="FAILED, $result"
	echo "make test-all of $(git rev-parse --short HEAD)$changed: $result, $((SECONDS / 60)) min; $(machine), $(go env GOVERSION GOOS GOARCH | paste -sd ' ' -)" |
		tee dist/test/result
fi
exit "$failed"

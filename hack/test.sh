#!/usr/bin/env bash
# Makes the first of the given targets, and then the others, two at a time, because tests
# on clusters wait much of their time. A target that fails keeps no other from being made.
# The output of each of the others is shown when that target has ended.
# At the end it prints the result and the duration of each target, and fails unless all of
# them have passed. Without -short, which is for make test, it also prints one line of result
# with the commit and the machine, and keeps it in dist/test/result.
#
#   hack/test.sh [-short] <target>...
set -uo pipefail
cd "$(dirname "$0")/.."

short=
if [ "$1" = -short ]; then
	short=$1
	shift
fi
commit=$(git rev-parse --short HEAD)
[ -z "$(git --no-optional-locks status --porcelain)" ] || commit+=" with changes"

rm -rf dist/test
mkdir -p dist/test

# run makes a target, and writes down its result and its duration.
run() {
	local start=$SECONDS result=passed
	"${MAKE:-make}" --no-print-directory SHORT="$short" "$1" || result=FAILED
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
# detector are compiled. What is left after it, unit compiles itself: with this priority it
# would take for ever beside other work.
aside nice -n 19 "${MAKE:-make}" --no-print-directory race-build >dist/test/race-build 2>&1
echo "=== make $1"
aside run "$1"
wait "${asides[1]}"
jobs -pr | grep -qx "${asides[0]}" && kill -- "-${asides[0]}"
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
	local model= memory=
	case $(uname) in
	Linux)
		model=$(awk -F ': *' '/^model name/ { print $2; exit }' /proc/cpuinfo)
		memory=$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
		;;
	Darwin)
		model=$(sysctl -n machdep.cpu.brand_string)
		memory=$(($(sysctl -n hw.memsize) >> 30))
		;;
	esac
	echo "$(getconf _NPROCESSORS_ONLN) CPUs${model:+ ($model)}, $memory GiB, $(go env GOVERSION GOOS GOARCH | paste -sd ' ' -)"
}
if [ -z "$short" ]; then
	[ "$failed" = 0 ] || result="FAILED, $result"
	echo "make test-all of $commit${TESTFLAGS:+ with $TESTFLAGS}: $result, $((SECONDS / 60)) min; $(machine)" | tee dist/test/result
fi
exit "$failed"

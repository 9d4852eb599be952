#!/usr/bin/env bash
# Runs the given targets of make one after the other, also after one has failed: those of
# e2e come first.
# At the end it prints the result and the duration of each, and fails if one of
# them failed.
#
#   hack/test.sh <target>...
set -uo pipefail
cd "$(dirname "$0")/.."

rm -rf dist/test
mkdir -p dist/test

# Tests on clusters wait much of their time. In that time, and with the least priority,
# the tests of the other parts are compiled.
nice -n 19 "${MAKE:-make}" --no-print-directory race-build >dist/test/race-build 2>&1 &
compiling=$!
trap 'kill "$compiling" 2>/dev/null' EXIT

failed=0
for target in "$@"; do
	case $target in
	e2e*) ;;
	*) # What does not compile is an error of the target too.
		kill -0 "$compiling" 2>/dev/null && echo "=== compiling the tests"
		wait "$compiling"
		;;
	esac
	echo "=== make $target"
	start=$SECONDS
	if "${MAKE:-make}" --no-print-directory "$target"; then
		result=passed
	else
		result=FAILED failed=1
	fi
	printf '%-16s %s after %d s\n' "$target" "$result" "$((SECONDS - start))" >>dist/test/parts
done

# count <action> counts the tests with this result, without their subtests.
count() {
	cat dist/test/*.json 2>/dev/null | grep -cE "\"Action\":\"$1\".*\"Test\":\"[^/\"]+\"" || true
}
echo "=== parts of make test"
cat dist/test/parts
echo "$(count pass) passed, $(count fail) failed, $(count skip) skipped"
exit "$failed"

#!/usr/bin/env bash
# Runs the tests of test/ with the given flags of go test. Those of e2e run in
# two parts side by side, each on clusters of its own: most of their time they
# wait. Which test is in which part does not matter, so long as both take about
# as long.
#
#   hack/e2e.sh <gotestsum> <flag of go test>...
set -euo pipefail
cd "$(dirname "$0")/../test"
gotestsum=$1
shift
logs=$PWD/../dist/test
mkdir -p "$logs"

# run <name> <argument of go test>... keeps the events of the run in <name>.json.
run() {
	local name=$1
	shift
	"$gotestsum" --format testname --hide-summary output --jsonfile "$logs/$name.json" -- "$@"
}

case " $* " in
*" -run"* | *" -skip"* | *" --run"* | *" --skip"*)
	run e2e "$@" ./...
	exit
	;;
esac

second='Fault|United|Pool|Isolated|Kind'
others=$(go list ./... | grep -v '/e2e$')
failed=0
# shellcheck disable=SC2086 # one argument for each package
run e2e-others "$@" $others || failed=1
run e2e-second "$@" -run "$second" ./e2e &
part=$!
trap 'kill "$part" 2>/dev/null || true' EXIT
run e2e-first "$@" -skip "$second" ./e2e || failed=1
wait "$part" || failed=1
trap - EXIT
exit "$failed"

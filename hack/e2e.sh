#!/usr/bin/env bash
# Runs the tests of test/ with the given flags of go test. Those of e2e run in
# two parts side by side, each on clusters of its own: most of their time they
# wait. Which test is in which part does not matter, so long as both take about
# as long.
set -euo pipefail
cd "$(dirname "$0")/../test"

case " $* " in
*" -run"* | *" -skip"* | *" --run"* | *" --skip"*)
	exec go test "$@" ./...
	;;
esac

second='Fault|United|Pool|Isolated|Kind'
others=$(go list ./... | grep -v '/e2e$')
# shellcheck disable=SC2086 # one argument for each package
go test "$@" $others
go test "$@" -run "$second" ./e2e &
part=$!
trap 'kill "$part" 2>/dev/null || true' EXIT
failed=0
go test "$@" -skip "$second" ./e2e || failed=1
wait "$part" || failed=1
trap - EXIT
exit "$failed"

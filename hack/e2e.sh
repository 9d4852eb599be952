#!/usr/bin/env bash
# Runs the tests of test/ with the given flags of go test. Those of e2e run in
# three parts side by side, each on clusters of its own: most of their time they
# wait. Which test is in which part does not matter, so long as all take about
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

# A test is in the first part whose pattern its name matches, else in the last.
# Tests that share a cluster beside the common one (of faults, of the plain form,
# of two replicas) are in one part, so that it is started once.
parts=('Fault|Kind|Isolated|Plain|Marked' 'United|Pool|Node|Manager|Leader|Override')
others=$(go list ./... | grep -v '/e2e$')
failed=0
# shellcheck disable=SC2086 # one argument for each package
run e2e-others "$@" $others || failed=1
running=()
trap 'kill "${running[@]}" 2>/dev/null || true' EXIT
before='^$'
for i in "${!parts[@]}"; do
	run "e2e-$((i + 1))" "$@" -run "${parts[i]}" -skip "$before" ./e2e &
	running+=($!)
	before+="|${parts[i]}"
done
run "e2e-$((${#parts[@]} + 1))" "$@" -skip "$before" ./e2e || failed=1
for part in "${running[@]}"; do
	wait "$part" || failed=1
done
trap - EXIT
exit "$failed"

#!/usr/bin/env bash
# Runs the tests of test/ with the given flags of go test. Those of e2e run in six
# parts, each on clusters of its own, three at a time, because they wait most of
# the time. Tests that share a cluster are in one part, so that the cluster is
# started once.
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

# using <pattern> lists the tests of e2e in which a line matches the pattern.
using() {
	awk -v pattern="$1" '
		/^func / { name = "" }
		/^func Test/ { name = $2; sub(/\(.*/, "", name) }
		name != "" && $0 ~ pattern { print name }
	' e2e/*_test.go | sort -u | paste -sd '|' -
}

case " $* " in
*" -run"* | *" -skip"* | *" --run"* | *" --skip"*)
	run e2e "$@" ./...
	exit
	;;
esac

# The programs are built once, and not by each part.
echo "building atoll-manager and the tests"
(cd .. && CGO_ENABLED=0 go build -o /dev/null ./cmd/atoll-manager)
if ! built=$(go test -exec true "$@" ./... 2>&1); then
	echo "$built"
	exit 1
fi

forms="^($(using 'inEachForm[(]t|plain[.]fixture'))$"
capacity="^($(using 'trio[.]fixture'))$"
capacity_faults="^($(using 'trio[.]fixture' | tr '|' '\n' | grep '^TestFault' | paste -sd '|' -))$"
faults="^($(using 'newFaultyFixture|range pairs|pairs\[|isolated[.]fixture'))$"
gangs="^($(using 'gangs[(]t|ganged[.]fixture|Gangs: true'))$"
# make attack runs ./attack.
others=$(go list ./... | grep -v -e '/e2e$' -e '/attack$')
failed=0
running=()
trap 'kill "${running[@]}" 2>/dev/null || true' EXIT
# Tests that create hundreds of pods run at the end, when the machine has less load.
{
	failed=0
	# shellcheck disable=SC2086 # one argument for each package
	run e2e-others "$@" $others || failed=1
	run e2e-forms "$@" -run "$forms" ./e2e || failed=1
	run e2e-capacity "$@" -run "$capacity" -skip "$capacity_faults" ./e2e || failed=1
	exit "$failed"
} &
running+=($!)
{
	failed=0
	run e2e-faults "$@" -run "$faults" ./e2e || failed=1
	run e2e-gangs "$@" -run "$gangs" ./e2e || failed=1
	exit "$failed"
} &
running+=($!)
run e2e-common "$@" -skip "$forms|$faults|$capacity|$gangs" ./e2e || failed=1
run e2e-capacity-faults "$@" -run "$capacity_faults" ./e2e || failed=1
for part in "${running[@]}"; do
	wait "$part" || failed=1
done
trap - EXIT
exit "$failed"

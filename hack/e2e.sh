#!/usr/bin/env bash
# Runs the tests of test/e2e with the given flags of go test, which have the form -flag or
# -flag=value. Unless -run or -skip chooses some of them, they run in parts, three at a time,
# because they wait most of the time. A part has the tests that share a cluster, so that the
# cluster is started once, and no other, because a cluster that waits for its next test takes
# a tenth of a core.
#
#   hack/e2e.sh <gotestsum> <flag of go test>...
set -euo pipefail
cd "$(dirname "$0")/../test"
gotestsum=$1
shift
logs=$PWD/../dist/test
mkdir -p "$logs"

# run <name> <argument>... runs go test, or another command that prints its events, and
# keeps the events in <name>.json.
run() {
	local name=$1
	shift
	"$gotestsum" --format testname --hide-summary output --jsonfile "$logs/$name.json" "$@"
}

case " $* " in
*" -run"* | *" -skip"* | *" --run"* | *" --skip"*)
	run e2e -- "$@" ./e2e
	exit
	;;
esac

# parts prints each test of e2e with the name of its part: the first whose fixture it
# uses. Those without one use the common cluster.
parts() {
	awk '
		function is(part, pattern) { if (test != "" && part_of[test] == "" && $0 ~ pattern) part_of[test] = part }
		/^func / { test = "" }
		/^func Test.*testing[.]T/ { test = $2; sub(/\(.*/, "", test); part_of[test] = "" }
		{
			is("forms", "in(EachForm|BothWays)[(]t|plain[.]fixture")
			is(test ~ /^TestFault/ ? "capacity-faults" : "capacity", "trio[.]fixture")
			is("gangs", "gangs[(]t|ganged[.]fixture|Gangs: true")
			is("pairs", "range pairs|pairs\\[")
			is("faults", "newFaultyFixture")
			is("isolated", "isolated[.]fixture")
			is("own", "newFixtureOfItsOwn")
		}
		END { for (test in part_of) print test, part_of[test] == "" ? "common" : part_of[test] }
	' e2e/*_test.go
}

# The programs are built once, and not by each part.
echo "building atoll-manager and the tests"
(cd .. && CGO_ENABLED=0 go build -o /dev/null ./cmd/atoll-manager)
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
go test -c "$@" -o "$programs/e2e.test" ./e2e
parts >"$programs/parts"

# part <name> <flag of go test>... runs the tests of a part.
part() {
	local name=$1
	shift
	local tests flag flags=()
	tests=$(awk -v part="$name" '$2 == part { print $1 }' "$programs/parts" | paste -sd '|' -)
	for flag in "$@"; do
		case $flag in
		-race | -tags=* | -cover* | -vet=* | -ldflags=*) ;; # built in
		*) flags+=("-test.${flag#-}") ;;
		esac
	done
	cd e2e
	run "e2e-$name" --raw-command -- go tool test2json -t -p e2e \
		"$programs/e2e.test" -test.v=test2json "${flags[@]}" -test.run "^($tests)\$"
}
export -f run part
export gotestsum logs programs

# The order lets all three end at about the same time (make test-times). Last, when the
# machine has less load, come the tests that create hundreds of pods while processes are
# killed. Four at a time take all of two cores, and on a slow machine simulated nodes then
# miss their leases.
printf '%s\n' gangs common forms own faults capacity isolated pairs capacity-faults |
	xargs -P 3 -I '{}' bash -euo pipefail -c 'part "$@"' part '{}' "$@"

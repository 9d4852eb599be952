#!/usr/bin/env bash
# Runs the tests of test/e2e with the given flags of go test, which have the form -flag or
# -flag=value. Unless -run or -skip chooses some of them, they run in the parts that
# test/e2e/parts.txt lists, three at a time, because they wait most of the time. A part has
# the tests that share a cluster, so that the cluster is started once, and no other, because
# a cluster that waits for its next test takes a tenth of a core.
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

# The programs are built once, and not by each part.
echo "building atoll-manager and the tests"
(cd .. && CGO_ENABLED=0 go build -o /dev/null ./cmd/atoll-manager)
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
go test -c "$@" -o "$programs/e2e.test" ./e2e

# listed prints the parts and their tests.
listed() { grep -v '^#' e2e/parts.txt; }
if ! difference=$(diff <(listed | awk '{ print $2 }' | sort) <(cd e2e && "$programs/e2e.test" -test.list . | sort)); then
	echo "test/e2e/parts.txt must list each test of test/e2e once (< only there, > missing there):" >&2
	grep '^[<>]' <<<"$difference" >&2
	exit 1
fi

# part <name> <flag of go test>... runs the tests of a part.
part() {
	local name=$1
	shift
	local tests flag flags=()
	tests=$(listed | awk -v part="$name" '$1 == part { print $2 }' | paste -sd '|' -)
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
export -f run listed part
export gotestsum logs programs

# The parts begin in the order of the list.
listed | awk '!seen[$1]++ { print $1 }' |
	xargs -P 3 -I '{}' bash -euo pipefail -c 'part "$@"' part '{}' "$@"

#!/usr/bin/env bash
# Mutation testing of the packages that decide: each is changed in one small way
# at a time, and its own tests have to notice. Prints a line for each package
# and each change that nobody noticed; keeps them in dist/mutate.
#
#   hack/mutate.sh <gremlins> [package]
set -euo pipefail
cd "$(dirname "$0")/.."
gremlins=$1
shift
packages=("$@")
if [ ${#packages[@]} = 0 ]; then
	mapfile -t packages < <(go list -f '{{if .TestGoFiles}}{{.Dir}}{{end}}' ./internal/domain/... ./internal/seats | sed "s|^$PWD/||")
fi

# A change counts as noticed if a test fails, not if vet does; and what is built thousands
# of times needs no debug information.
export GOFLAGS='-vet=off "-ldflags=-s -w"'

mkdir -p dist/mutate
# The tool must find the one change that the probe's test does not notice: with a flag
# that go test refuses, for one, every change would count as noticed.
"$gremlins" unleash --workers 1 --timeout-coefficient 100 ./hack/mutateprobe >dist/mutate/probe.log 2>&1 || true
if ! grep -q 'LIVED CONDITIONALS_BOUNDARY' dist/mutate/probe.log; then
	echo "the mutation tester does not find the change that nobody notices in hack/mutateprobe:" >&2
	cat dist/mutate/probe.log >&2
	exit 1
fi
for package in "${packages[@]}"; do
	package=${package#./}
	log=dist/mutate/${package//\//-}.log
	# A change that makes a loop endless ends by the timeout, and counts as noticed.
	"$gremlins" unleash --workers 1 --timeout-coefficient 20 \
		--invert-bitwise --invert-logical --invert-loopctrl --remove-self-assignments \
		"./$package" >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
	awk -v package="$package" '
		/^ *KILLED/ { killed++ } /^ *TIMED OUT/ { timeout++ } /^ *LIVED/ { lived++ } /^ *NOT COVERED/ { uncovered++ }
		END { noticed = killed + timeout; all = noticed + lived + uncovered
			printf "%-32s %4d changes, %4d noticed (%.0f %%), %d not noticed, %d where no test comes\n",
				package, all, noticed, all ? 100 * noticed / all : 100, lived, uncovered }' "$log"
	grep -E '^ *(LIVED|NOT COVERED)' "$log" | sed 's/^ */    /' || true
done

#!/usr/bin/env bash
# Runs each fuzz test of the root module, and then the test of random objects on a real
# control plane, for the given time each. Go keeps what it finds in testdata/fuzz of the
# package; the test of random objects prints its seed.
#
#   hack/fuzz.sh <time, such as 10m>
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1

go list -f '{{.Dir}}' ./... | while IFS= read -r dir; do
	{ grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go 2>/dev/null || true; } | sed 's/^func //' | while IFS= read -r name; do
		echo "=== $name in ${dir#"$PWD/"}"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$dir" </dev/null
	done
done
echo "=== TestRandomObjects"
cd test
go test ./e2e -count=1 -timeout 0 -v -run '^TestRandomObjects$' -args -random "$time" -seed 0

#!/usr/bin/env bash
# Prints which tests of the last make test, or of a part of it, took longest.
#
#   hack/test-times.sh <gotestsum>
set -euo pipefail
cd "$(dirname "$0")/.."
gotestsum=$1

shopt -s nullglob
logs=(dist/test/*.json)
if [ ${#logs[@]} = 0 ]; then
	echo "no test was run yet: run make test, or a part of it, first" >&2
	exit 1
fi
if [ -e dist/test/parts ]; then cat dist/test/parts; fi
for log in "${logs[@]}"; do
	echo
	echo "=== $(basename "$log" .json): the slowest tests, those of 2 s and more"
	"$gotestsum" tool slowest --threshold 2s --jsonfile "$log" | sed -n 1,40p # slowest first
done

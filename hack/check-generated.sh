#!/usr/bin/env bash
# Regenerates and fails if that changes a file: then a source was changed without
# `make generate`. It compares the files before and after, and not with the last
# commit, so it can run with uncommitted changes; in CI (CI=true) the whole
# checkout must be clean too.
#
#   hack/check-generated.sh <controller-gen>
set -euo pipefail
cd "$(dirname "$0")/.."

generated() {
	{
		find api -name 'zz_generated.*.go' -type f
		find charts/atoll/files docs/metrics.md -type f 2>/dev/null || true
	} | sort | while IFS= read -r file; do
		echo "$(cksum <"$file") $file"
	done
}

before=$(generated)
hack/generate.sh "$1"
after=$(generated)

if [ "$before" != "$after" ]; then
	echo "regenerating changed these files; commit what make generate writes:" >&2
	diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9]* [0-9]* /  /p' | sort -u >&2
	exit 1
fi
if [ "${CI:-}" = true ] && git rev-parse --git-dir >/dev/null 2>&1; then
	changes=$(git --no-optional-locks status --porcelain)
	if [ -n "$changes" ]; then
		echo "the checkout is not clean:" >&2
		echo "$changes" >&2
		exit 1
	fi
fi

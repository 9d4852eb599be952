#!/usr/bin/env bash
# Writes all files that are generated from Go source and committed. A file whose
# content is the same is not written; a file without a source is removed.
#
#   hack/generate.sh <controller-gen>
set -euo pipefail
cd "$(dirname "$0")/.."
controller_gen=$1

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# sync <new directory> <directory> makes the second equal to the first.
sync() {
	local file
	mkdir -p "$1" "$2"
	for file in "$1"/*; do
		[ -e "$file" ] || continue
		cmp -s "$file" "$2/$(basename "$file")" || cp "$file" "$2/"
	done
	for file in "$2"/*; do
		[ -e "$1/$(basename "$file")" ] || rm -f "$file"
	done
	rmdir "$2" 2>/dev/null || true
}

# Deep copies, beside the types.
"$controller_gen" object paths=./api/...

# CustomResourceDefinitions. Templates keep their metadata.
"$controller_gen" crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir="$new/crds"
go run ./hack/crdtrim "$new/crds/apps.openyurt.io_uniteddeployments.yaml"
sync "$new/crds" charts/atoll/files/crds
# Those of the kinds that are shown at the coordinator of a pool.
mkdir "$new/shown"
cp "$new/crds/apps.openyurt.io_nodepools.yaml" "$new/shown/"
sync "$new/shown" internal/coordinator/readonly/crds

# The manager's roles, from the markers beside the code that needs each permission. A
# marker with namespace=atoll-system becomes a Role; the chart replaces the namespace by
# that of the release. A marker with roleName=atoll-manager-<feature> becomes part of that
# ClusterRole; the chart renders it only if the feature is on (templates/rbac-generated.yaml).
#
# controller-gen ignores such a marker without an error if it is in a doc comment: it
# needs a comment of its own, with an empty line after it.
sources=()
if [ -d internal ]; then sources+=(paths=./internal/...); fi
if [ -d cmd ]; then sources+=(paths=./cmd/...); fi
if [ ${#sources[@]} -gt 0 ]; then
	find internal cmd -name '*.go' -type f 2>/dev/null | xargs awk '
		FNR == 1 { marker = "" }
		/^[ \t]*\/\/ ?\+kubebuilder:rbac/ { if (marker == "") marker = FILENAME ":" FNR; next }
		/^[ \t]*\/\// { next }
		/[^ \t]/ { if (marker != "") { print marker ": put an empty line between this marker and what follows"; lost = 1 } }
		{ marker = "" }
		END { exit lost }' >&2
	"$controller_gen" rbac:roleName=atoll-manager "${sources[@]}" output:rbac:artifacts:config="$new/rbac"
fi
sync "$new/rbac" charts/atoll/files/rbac

# The list of metrics.
mkdir -p docs
go run ./hack/metricsdoc >"$new/metrics.md"
cmp -s "$new/metrics.md" docs/metrics.md || cp "$new/metrics.md" docs/metrics.md

#!/usr/bin/env bash
# Builds atoll-manager as for the image and runs it in an empty root file system,
# as the image's user. Needs Linux, and root or user namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
hack/build-static.sh ./cmd/atoll-manager "$root/atoll-manager"

user=$(awk '$1 == "USER" { print $2 }' Dockerfile)
entrypoint=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' Dockerfile)
if [ "$(id -u)" = 0 ]; then
	enter=(chroot --userspec="$user" "$root")
else
	enter=(unshare --map-root-user chroot "$root")
fi
help=$("${enter[@]}" "$entrypoint" --help 2>&1)
grep -q -- '-scheduler-name' <<<"$help" || { echo "atoll-manager --help in an empty root said: $help" >&2; exit 1; }
echo "image-check: $entrypoint runs in an empty root as ${user}, $(du -k "$root/atoll-manager" | cut -f1) KiB"

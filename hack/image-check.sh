#!/usr/bin/env bash
# Makes the image of atoll-manager and atoll-hub for this machine and runs both from its content, in
# an empty root file system and as the image's user. Needs Linux, and root or user namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
mkdir "$dir/layout" "$dir/root"
(cd hack/chart && go run ./cmd/image -source ../.. -image check/atoll-manager:0 -platforms "linux/$(go env GOHOSTARCH)" -o "$dir/image.tar")
tar -xf "$dir/image.tar" -C "$dir/layout"

# blobs <file> prints the files of the blobs that a file of the layout names, in its order.
blobs() {
	grep -o '"sha256:[0-9a-f]*"' "$1" | sed "s|\"sha256:\(.*\)\"|$dir/layout/blobs/sha256/\1|"
}
index=$(blobs "$dir/layout/index.json")
manifest=$(blobs "$index")
{ read -r config; read -r layer; } < <(blobs "$manifest")
tar -xzf "$layer" -C "$dir/root"

user=$(sed -n 's/.*"User":"\([0-9:]*\)".*/\1/p' "$config")
entrypoint=$(sed -n 's/.*"Entrypoint":\["\([^"]*\)"\].*/\1/p' "$config")
if [ "$(id -u)" = 0 ]; then
	enter=(chroot --userspec="$user" "$dir/root")
else
	enter=(unshare --map-root-user chroot "$dir/root")
fi
help=$("${enter[@]}" "$entrypoint" --help 2>&1)
grep -q -- '-scheduler-name' <<<"$help" || { echo "atoll-manager --help in an empty root said: $help" >&2; exit 1; }
hub=$("${enter[@]}" /atoll-hub --help 2>&1)
grep -q -- '-config' <<<"$hub" || { echo "atoll-hub --help in an empty root said: $hub" >&2; exit 1; }
echo "image-check: $entrypoint runs in an empty root as ${user}; the image has $(ls "$dir/root" | paste -sd ' ' -), $(du -k "$layer" | cut -f1) KiB compressed"

#!/usr/bin/env bash
# Builds the image of atoll-manager with docker buildx. Further arguments are passed to buildx:
#
#   hack/image.sh <image> --push --platform linux/amd64,linux/arm64
#
# Without --push or --output the image is loaded into the local engine.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {
	echo "make image: $1" >&2
	echo "Without docker, build the program with 'make build' and put bin/atoll-manager into an image by other means." >&2
	exit 1
}
command -v docker >/dev/null || missing "there is no docker on this machine."
docker buildx version >/dev/null 2>&1 || missing "docker has no buildx here: install the plugin docker-buildx."
docker buildx inspect --bootstrap >/dev/null 2>&1 ||
	missing "docker buildx has no builder that answers: start the docker engine, or name another with 'docker buildx use'."

image=$1
shift
case " $* " in
*" --push "* | *" --output"* | *" -o "* | *" --load "*) ;;
*) set -- "$@" --load ;;
esac

revision=$(git rev-parse HEAD 2>/dev/null || true)
# The time of the last commit instead of now, so that the same source gives the same image.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
docker buildx build --tag "$image" \
	--build-arg "VERSION=$(awk '$1 == "appVersion:" { gsub(/"/, "", $2); print $2 }' charts/atoll/Chart.yaml)" \
	--build-arg "REVISION=$revision" "$@" .
echo "built $image"

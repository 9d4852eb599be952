#!/bin/sh
# Builds a program for an image: static, and with the same bytes whatever the
# directory of the source is. GOOS and GOARCH may name another platform.
#
#   hack/build-static.sh <package> <file>
set -eu
CGO_ENABLED=0 GOWORK=off exec go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$2" "$1"

#!/bin/sh
# Builds a program as images hold it: static, and the same bytes wherever the
# source is. GOOS and GOARCH may name another platform.
#
#   hack/build-static.sh <package> <file>
set -eu
CGO_ENABLED=0 GOWORK=off exec go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$2" "$1"

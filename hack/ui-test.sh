#!/usr/bin/env bash
# Runs the tests of the page of kubectl atoll ui in a real browser, if there is one: Debian's package
# chromium, and Node.js with npm, which brings playwright-core. Screenshots go to dist/ui.
#
#   hack/ui-test.sh <gotestsum> <flag of go test>...
set -euo pipefail
cd "$(dirname "$0")/.."

playwright=playwright-core@1.64.1
for program in chromium node npm; do
	if ! command -v "$program" >/dev/null; then
		echo "ui-test: skipped: there is no $program (Debian: apt-get install chromium nodejs npm)"
		exit 0
	fi
done
bin=$PWD/bin/$playwright
if [ ! -d "$bin" ]; then
	echo "ui-test: installing $playwright into bin/"
	npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix "$bin.part" "$playwright"
	rm -rf "$bin" && mv "$bin.part" "$bin"
fi
rm -rf dist/ui
mkdir -p dist/ui dist/test
CHROMIUM=$(command -v chromium)
export CHROMIUM PLAYWRIGHT=$bin OUT=$PWD/dist/ui
cd test
"$1" --format standard-verbose --jsonfile ../dist/test/ui.json -- -timeout 20m "${@:2}" ./ui

#!/usr/bin/env bash
# Builds a tool whose version a module of hack/ pins, and prints the number of
# compiled packages: with an empty build cache it takes minutes.
#
#   hack/build-tool.sh <module directory> <package> <program>
set -euo pipefail
cd "$(dirname "$0")/.."
module=$1 package=$2 program=$3

echo "building $program (once; a minute or two with an empty build cache)"
mkdir -p "$(dirname "$program")"
new=$PWD/$program.new
trap 'rm -f "$new"' EXIT

# go build -v prints the name of each package that it compiles, and errors. With the same
# flags as all other builds, packages that they share are compiled once.
(cd "$module" && CGO_ENABLED=0 go build -v -ldflags '-s -w' -o "$new" "$package" 2>&1) | {
	built=0
	while IFS= read -r line; do
		case $line in
		*[[:space:]]* | '#'*)
			case $line in
			"go: downloading "*) echo "  ${line#go: }" ;;
			*) echo "$line" >&2 ;;
			esac
			;;
		*)
			built=$((built + 1))
			if [ $((built % 100)) = 0 ]; then echo "  $built packages compiled"; fi
			;;
		esac
	done
}
mv "$new" "$program"
# Older versions of the same tool are not needed any more.
name=$(basename "$package")
for old in bin/"$name"-*; do
	if [ "$old" != "$program" ]; then rm -f "$old"; fi
done

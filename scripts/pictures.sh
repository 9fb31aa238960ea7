#!/usr/bin/env bash
# Makes the pictures of the window in README.md and docs/window.md: the end of a demo run, in both themes.
#
#   scripts/pictures.sh WGPT
#
# WGPT is the program. Needs the Debian packages xvfb and mesa-vulkan-drivers; trains on the CPU, twice, and
# finds nothing of the home of the user.
set -euo pipefail

wgpt=$(realpath "$1")
docs=$(cd "$(dirname "$0")/../docs" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export HOME=$work XDG_CACHE_HOME=$work/cache XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config

for theme in dark light; do
    rm -rf "$work/out"
    xvfb-run -a -s '-screen 0 1360x860x24' "$wgpt" --demo --device=cpu --no-self-test \
        --theme="$theme" --screenshot-to "$docs/window-$theme.png"
    echo "docs/window-$theme.png"
done

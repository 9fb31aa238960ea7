#!/usr/bin/env bash
# Makes the pictures of the window in README.md and docs/window.md: the end of a demo run, in both themes.
#
#   scripts/pictures.sh WGPT
#
# WGPT is the program. Needs the Debian packages xvfb and mesa-vulkan-drivers. Trains on the CPU, and
# finds nothing of the user's home.
set -euo pipefail

wgpt=$(realpath "$1")
docs=$(cd "$(dirname "$0")/../docs" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export HOME=$work XDG_CACHE_HOME=$work/cache XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config \
    XDG_RUNTIME_DIR=$work

# picture THEME ARG...: opens the window and saves its picture. The pointer is in the middle of the screen, which is
# higher than the window: there it points at no chart.
picture() {
    local theme=$1
    shift
    xvfb-run -a -s '-screen 0 1360x1500x24' "$wgpt" --device=cpu --no-self-test --theme="$theme" \
        --screenshot-to "$docs/window-$theme.png" "$@"
    echo "docs/window-$theme.png"
}

picture dark --demo
rm -r out
picture light --demo

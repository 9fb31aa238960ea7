#!/usr/bin/env bash
# Makes the pictures of the window in README.md and docs/window.md: the end of a demo run, in both themes, and the moving
# one of the whole run, about five times as fast.
#
#   scripts/pictures.sh WGPT
#
# WGPT is the program. Needs the Debian packages xvfb, xdotool, imagemagick, webp and mesa-vulkan-drivers. Trains on the CPU, and
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
rm -r out

# Twelve seconds at five pictures a second, and the last one for three more.
moving() {
    local frame frames=()
    export DISPLAY=:$((90 + RANDOM % 900))
    Xvfb "$DISPLAY" -screen 0 1280x800x24 >/dev/null 2>&1 &
    screen=$!
    trap 'kill "$screen" 2>/dev/null; rm -rf "$work"' EXIT
    sleep 1
    timeout 150 "$wgpt" --device=cpu --no-self-test --theme=dark --demo &
    local window=$!
    sleep 3
    # In the corner, the pointer points at no chart.
    xdotool mousemove 1279 799
    for frame in $(seq -w 0 59); do
        import -window root "frame-$frame.png"
        frames+=(-d 200 "frame-$frame.png")
        sleep 1
    done
    frames[-2]=3000
    kill "$window"
    img2webp -loop 0 -lossy -q 55 -m 6 "${frames[@]}" -o "$docs/window.webp" >/dev/null
    echo docs/window.webp
}

moving

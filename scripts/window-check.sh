#!/usr/bin/env bash
# Tests the window end to end, under Xvfb, by keyboard and with a real run. Saves screenshots.
#
#   scripts/window-check.sh WGPT [FOLDER]
#
# WGPT is the program. Screenshots go to FOLDER, by default a temporary one. Needs the Debian packages
# xvfb, xdotool and imagemagick, and a Vulkan or OpenGL driver; a software renderer is enough. With gcc and
# libvulkan-dev, and both drivers, it also opens the window next to a Vulkan driver that crashes.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
wgpt=$(realpath "$1")
out=${2:-$(mktemp -d)}
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
cd "$work"

# A long run of short steps.
export WGPT_PRESET= WGPT_N_LAYER=2 WGPT_N_HEAD=2 WGPT_N_EMBD=32 WGPT_BLOCK_SIZE=32 \
    WGPT_BATCH_SIZE=4 WGPT_GRADIENT_ACCUMULATION_STEPS=1 WGPT_MAX_ITERS=100000 \
    WGPT_EVAL_INTERVAL=50 WGPT_EVAL_ITERS=2 WGPT_LOG_INTERVAL=1 WGPT_SAMPLE_TOKENS=40 \
    WGPT_SAMPLE_INTERVAL=50 WGPT_DEVICE=${WGPT_DEVICE:-vulkan:0} XDG_DATA_HOME=$work/settings

fail() {
    echo "error: $*" >&2
    screenshot failed
    tail -n 5 "$work"/out/*/events.jsonl "$work/stderr" >&2 || true
    exit 1
}

screenshot() {
    import -window root "$out/$1.png" 2>/dev/null || true
}

events() {
    cat out/*/events.jsonl 2>/dev/null || true
}

count() {
    events | grep -c "\"event\":\"$1\"" || true
}

# wait_for WHAT SECONDS COMMAND...: waits until the command succeeds; fails after SECONDS.
wait_for() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@"; do
        ((SECONDS < end)) || fail "$what: timed out"
        sleep 0.2
    done
    echo "ok: $what"
}

more_than() {
    (($(count "$1") > $2))
}

key() {
    xdotool windowfocus --sync "$window" && xdotool key --clearmodifiers "$1"
}

open_window() {
    "$wgpt" "$@" 2>"$work/stderr" &
    program=$!
    local end=$((SECONDS + 60))
    until window=$(xdotool search --onlyvisible --name 'wgpt$' 2>/dev/null | tail -n 1) &&
        [[ -n $window ]]; do
        kill -0 $program 2>/dev/null || fail "the window did not open"
        ((SECONDS < end)) || fail "no window after 60 seconds"
        sleep 0.2
    done
    sleep 2
}

display=:$((90 + RANDOM % 900))
# Without -noreset the server resets after its last window closes, and meanwhile refuses the next one.
Xvfb $display -screen 0 1360x860x24 -noreset >/dev/null 2>&1 &
server=$!
# This also ends a run that outlived its window and would train for hours.
trap 'pkill -f "$work" || true; kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
export DISPLAY=$display
unset WAYLAND_DISPLAY
sleep 1

# A text to train on, opened as if it had been dropped on the window.
for n in $(seq 400); do
    echo "The $n. fox of the village saw $((n * 7 % 13)) red baskets and went home."
done >foxes.txt
open_window foxes.txt
wait_for 'the text is prepared' 30 test -e data/foxes/meta.json
sleep 1
screenshot empty
key ctrl+Return
wait_for 'ten steps' 120 more_than step 10
key space
sleep 2
steps=$(count step)
sleep 2
(($(count step) == steps)) || fail 'the run does not pause'
echo 'ok: the run is paused'
saved=$(count checkpoint)
key ctrl+s
wait_for 'a checkpoint while paused' 20 more_than checkpoint "$saved"
key space
wait_for 'steps after resuming' 20 more_than step "$steps"
screenshot running

# The trainer, not its supervisor if it has one.
child=$(pgrep -n -P $program -f 'wgpt worker')
trainer=$(pgrep -n -P "$child" || echo "$child")
steps=$(count step)
replans=$(count replan)
kill -9 "$trainer"
wait_for 'the killed trainer is noticed within 10 seconds' 10 more_than replan "$replans"
wait_for 'steps after the trainer was killed' 60 more_than step $((steps + 3))
screenshot recovered
key ctrl+period
wait_for 'a stop with a checkpoint' 60 more_than done 0
for name in config.toml log.txt lock; do
    compgen -G "out/*/$name" >/dev/null || fail "the run folder has no $name"
done
compgen -G 'out/*/checkpoints/*/model.safetensors' >/dev/null || fail 'no model was saved'
sleep 1
screenshot finished

# A run continues when its window is killed; another window can show and stop it. The first key shows the settings.
key ctrl+Return
sleep 1
screenshot again
key ctrl+Return
run_two() { compgen -G 'out/*-2/events.jsonl' >/dev/null && (($(grep -c '"event":"step"' out/*-2/events.jsonl) > $1)); }
wait_for 'a second run' 60 run_two 3
kill -9 $program
steps=$(grep -c '"event":"step"' out/*-2/events.jsonl)
wait_for 'the run continues without its window' 60 run_two $((steps + 5))
open_window out/*-2
sleep 3
screenshot attached
key ctrl+period
wait_for 'another window stops it' 60 grep -q '"event":"done"' out/*-2/events.jsonl
kill $program
wait $program 2>/dev/null || true

# A screenshot by the program itself.
rm -rf out
export WGPT_MAX_ITERS=60
timeout 120 "$wgpt" --demo --screenshot-to "$out/screenshot.png" || fail 'no screenshot'
[[ -s $out/screenshot.png ]] || fail 'the screenshot is empty'
echo 'ok: a screenshot of the demo'

# A driver that crashes while it lists its devices: the window draws through OpenGL, and says so.
if sh "$here/../tests/driver/build.sh" "$work/driver" 2>/dev/null; then
    VK_DRIVER_FILES=$work/driver/manifest.json FAULT_CRASH_AT=EnumeratePhysicalDevices WGPT_DEVICE=auto \
        timeout 120 "$wgpt" --screenshot-to "$out/crashing-driver.png" || fail 'a driver ended the window'
    [[ -s $out/crashing-driver.png ]] || fail 'the screenshot is empty'
    echo 'ok: a window next to a driver that crashes'
fi
echo "screenshots in $out"

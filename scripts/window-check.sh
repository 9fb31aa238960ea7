#!/usr/bin/env bash
# Uses the window as a person would: under Xvfb, by the keyboard, with a real run. Leaves pictures.
#
#   scripts/window-check.sh WGPT [FOLDER]
#
# WGPT is the program; pictures and the run go to FOLDER, or to a temporary one. Needs xvfb, xdotool
# and imagemagick (Debian's names) and a graphics interface, in software if need be.
set -euo pipefail

wgpt=$(realpath "$1")
out=${2:-$(mktemp -d)}
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
cd "$work"

# A run that takes a while, of steps that are quick.
export WGPT_PRESET= WGPT_N_LAYER=2 WGPT_N_HEAD=2 WGPT_N_EMBD=32 WGPT_BLOCK_SIZE=32 \
    WGPT_BATCH_SIZE=4 WGPT_GRADIENT_ACCUMULATION_STEPS=1 WGPT_MAX_ITERS=100000 \
    WGPT_EVAL_INTERVAL=50 WGPT_EVAL_ITERS=2 WGPT_LOG_INTERVAL=1 WGPT_SAMPLE_TOKENS=40 \
    WGPT_SAMPLE_INTERVAL=50 WGPT_DEVICE=${WGPT_DEVICE:-vulkan:0} XDG_DATA_HOME=$work/settings

fail() {
    echo "error: $*" >&2
    picture failed
    tail -n 5 "$work"/out/*/events.jsonl "$work/stderr" >&2 || true
    exit 1
}

picture() {
    import -window root "$out/$1.png" 2>/dev/null || true
}

events() {
    cat out/*/events.jsonl 2>/dev/null || true
}

count() {
    events | grep -c "\"event\":\"$1\"" || true
}

# wait_for WHAT SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@"; do
        ((SECONDS < end)) || fail "$what: not within the time"
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
    until window=$(xdotool search --onlyvisible --name '^wgpt$' 2>/dev/null | tail -n 1) &&
        [[ -n $window ]]; do
        kill -0 $program 2>/dev/null || fail "the window did not open"
        ((SECONDS < end)) || fail "no window within a minute"
        sleep 0.2
    done
    sleep 2
}

display=:$((90 + RANDOM % 900))
# Else it begins anew when its last window goes, and refuses the next one meanwhile.
Xvfb $display -screen 0 1360x860x24 -noreset >/dev/null 2>&1 &
server=$!
# A run that outlived its window would go on for hours.
trap 'pkill -f "$work" || true; kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
export DISPLAY=$display
unset WAYLAND_DISPLAY
sleep 1

# A text, as if it had been dropped.
for n in $(seq 400); do
    echo "The $n. fox of the village saw $((n * 7 % 13)) red baskets and went home."
done >foxes.txt
open_window foxes.txt
wait_for 'the text is prepared' 30 test -e data/foxes/meta.json
sleep 1
picture empty
key ctrl+Return
wait_for 'ten steps' 120 more_than step 10
key space
sleep 2
steps=$(count step)
sleep 2
(($(count step) == steps)) || fail 'steps go on during a pause'
echo 'ok: a pause holds'
saved=$(count checkpoint)
key ctrl+s
wait_for 'a checkpoint during the pause' 20 more_than checkpoint "$saved"
key space
wait_for 'steps after the pause' 20 more_than step "$steps"
picture running

# The trainer's own process, not its supervisor, if there is one.
child=$(pgrep -n -P $program -f 'train --json')
trainer=$(pgrep -n -P "$child" || echo "$child")
steps=$(count step)
replans=$(count replan)
kill -9 "$trainer"
wait_for 'the window says so within 10 seconds' 10 more_than replan "$replans"
wait_for 'steps after the trainer was killed' 60 more_than step $((steps + 3))
picture recovered
key ctrl+period
wait_for 'a stop with a checkpoint' 60 more_than done 0
for name in config.toml log.txt lock; do
    compgen -G "out/*/$name" >/dev/null || fail "the run folder has no $name"
done
compgen -G 'out/*/checkpoints/*/model.safetensors' >/dev/null || fail 'no model was saved'
sleep 1
picture finished

# A window that is killed, not closed, leaves its run going on; another one can show and stop it.
key ctrl+Return
run_two() { compgen -G 'out/*-2/events.jsonl' >/dev/null && (($(grep -c '"event":"step"' out/*-2/events.jsonl) > $1)); }
wait_for 'a second run' 60 run_two 3
kill -9 $program
steps=$(grep -c '"event":"step"' out/*-2/events.jsonl)
wait_for 'it goes on without the window' 60 run_two $((steps + 5))
open_window out/*-2
sleep 3
picture attached
key ctrl+period
wait_for 'it stops by another window' 60 grep -q '"event":"done"' out/*-2/events.jsonl
kill $program
wait $program 2>/dev/null || true

# A picture by the program itself.
rm -rf out
export WGPT_MAX_ITERS=60
timeout 120 "$wgpt" --demo --screenshot-to "$out/picture.png" || fail 'no picture'
[[ -s $out/picture.png ]] || fail 'an empty picture'
echo 'ok: a picture of the demo'
echo "pictures in $out"

#!/usr/bin/env bash
# Compares wgpt.exe under Wine with a wgpt for Linux; scripts/windows.sh calls it, with a display and Wine
# set up.
#
#   train.sh WINE WGPT.EXE WGPT [FOLDER]
#
# Screenshots go to FOLDER, by default a temporary one.
set -euo pipefail

wine=$1
exe=$(realpath "$2")
linux=$(realpath "$3")
shots=${4:-$(mktemp -d)}
mkdir -p "$shots"
shots=$(realpath "$shots")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A user name may have such letters.
mkdir "$work/Jörg Müller"
cd "$work/Jörg Müller"

# The largest relative difference of a loss from Linux's.
tolerance=1e-5
# Software Vulkan is slow, so this runs a part of the demo.
short=(--max_iters=200 --lr_decay_iters=200)

fail() {
    echo "error: $*" >&2
    tail -n 15 stdout stderr >&2 2>/dev/null || true
    screenshot failed
    exit 1
}

wgpt() {
    "$wine" "$exe" "$@"
}

# expect CODE ARG...: runs wgpt.exe, which must exit with the code and an error message.
expect() {
    local wanted=$1 code=0
    shift
    wgpt "$@" >stdout 2>stderr </dev/null || code=$?
    ((code == wanted)) || fail "wgpt $* exited with $code, not $wanted"
    ! grep -q panicked stderr || fail "wgpt $* panicked"
}

# says PATTERN FILE
says() {
    grep -Eq "$1" "$2" || fail "no line of $2 matches: $1"
}

# wait_for WHAT SECONDS COMMAND...: waits until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@"; do
        ((SECONDS < end)) || fail "$what: timed out"
        sleep 0.2
    done
    echo "ok: $what"
}

has_event() {
    grep -q "\"event\":\"$2\"" "$1/events.jsonl" 2>/dev/null
}

# losses RUN: prints the loss of each iteration, the last one if a resumed run computed it again.
losses() {
    awk '/"event":"step"/ {
        match($0, /"iter":[0-9]+/); iter = substr($0, RSTART + 7, RLENGTH - 7)
        match($0, /"loss":[-0-9.e]+/); loss[iter] = substr($0, RSTART + 7, RLENGTH - 7)
    }
    END { for (iter in loss) print iter, loss[iter] }' "$1/events.jsonl" | sort -n
}

# same_losses NAME RUN RUN TOLERANCE: compares all losses.
same_losses() {
    losses "$2" >a.losses
    losses "$3" >b.losses
    join -j 1 <(sort a.losses) <(sort b.losses) | awk -v name="$1" -v most="$4" \
        -v all="$(wc -l <a.losses)" -v others="$(wc -l <b.losses)" '
        {
            off = $3 == 0 ? ($2 == 0 ? 0 : 1) : ($2 - $3) / $3
            if (off < 0) off = -off
            if (off > worst) { worst = off; at = $1 }
        }
        END {
            printf "%s: %d losses, the largest difference is %.2g", name, NR, worst
            print (worst > 0 ? ", at iteration " at : "")
            exit !(NR > 0 && NR == all && NR == others && worst <= most)
        }' || fail "$1: the losses differ, or are not of the same iterations"
}

# compare DEVICE ARG...: trains the demo on Linux and under Wine.
compare() {
    local device=$1 name=${1%:*}
    shift
    "$linux" train --preset=demo --device="$device" --run="linux-$name" "$@" >stdout 2>stderr ||
        fail "Linux does not train on $device"
    expect 0 train --preset=demo --device="$device" --run="wine-$name" "$@"
    says '^done after ' stdout
    says 'try it with: ' stderr
    same_losses "$device" "wine-$name" "linux-$name" "$tolerance"
}

# The same files, texts and plans as on Linux.
other_commands() {
    local number
    for number in $(seq 400); do
        printf 'Die %d. Füchsin sah %d Körbe.\r\n' "$number" $((number * 7 % 13))
    done >'der Text.txt'
    expect 0 prepare 'der Text.txt' -o 'data/für Wine' --tokenizer=char
    "$linux" prepare 'der Text.txt' -o data/linux --tokenizer=char >stdout 2>&1
    cmp 'data/für Wine/train.bin' data/linux/train.bin || fail 'prepare writes other tokens'
    expect 0 train --preset=demo --data='data/für Wine' --device=cpu --run='out/ein Lauf' --max_iters=20
    expect 0 eval 'out/ein Lauf' --device=cpu
    expect 0 export 'out/ein Lauf' -o hf
    [[ -s hf/model.safetensors ]] || fail 'export wrote no model'

    local text=(sample wine-cpu --device=cpu --temperature=0 --start=Once --max-new-tokens=100)
    "$linux" "${text[@]}" >linux.txt 2>/dev/null
    expect 0 "${text[@]}"
    cmp stdout linux.txt || fail 'sample writes another text'
    local plan=(plan --preset=gpt2-large --target 12GiB)
    "$linux" "${plan[@]}" >linux.txt
    expect 0 "${plan[@]}"
    cmp stdout linux.txt || fail 'plan prints another plan'
    echo 'ok: prepare, eval, export, sample and plan'
}

# A killed run continues, and so does a run that Ctrl-C stopped, with the losses of the whole run.
interruptions() {
    local run code=0
    for run in killed interrupted; do
        "$wine" "$exe" train --preset=demo --device=cpu --run=$run >stdout 2>stderr </dev/null &
        wait_for "a checkpoint of the run to be $run" 120 has_event $run checkpoint
        case $run in
        killed) kill -KILL $! ;;
        # Wine turns this into a Ctrl-C.
        interrupted) kill -INT $! ;;
        esac
        code=0
        wait $! || code=$?
        if [[ $run == interrupted ]]; then
            ((code == 130)) || fail "a run that Ctrl-C stopped exited with $code, not 130"
            has_event $run 'done' || fail 'a run that Ctrl-C stopped has no end in its record'
        fi
        expect 0 train --resume --run=$run --device=cpu
        same_losses "$run" $run wine-cpu 0
    done

    # A trainer outlives its supervisor while it saves.
    "$wine" "$exe" train --preset=demo --device=vulkan:0 --run=orphan >stdout 2>stderr </dev/null &
    wait_for 'steps of a supervised run' 120 has_event orphan step
    kill -KILL $!
    wait $! 2>/dev/null || true
    wait_for 'the trainer stops once its supervisor is gone' 120 has_event orphan 'done'
    compgen -G 'orphan/checkpoints/*/model.safetensors' >/dev/null || fail 'the trainer saved nothing'
}

# A logout stops a run on each kind of device with a checkpoint. Only the record tells: the session has ended.
logout() {
    local device
    for device in cpu vulkan:0; do
        local run=logout-${device%:*}
        "$wine" "$exe" train --preset=demo --device=$device --run=$run --max_iters=100000 >stdout 2>stderr </dev/null &
        wait_for "steps before a logout on $device" 120 has_event $run step
        "$wine" wineboot --end-session >wineboot.txt 2>&1 || true
        wait_for "the run on $device stops" 60 has_event $run 'done'
        wait $! 2>/dev/null || true
        grep -q '"event":"done".*"reason":"stopped"' $run/events.jsonl || fail "the run on $device has not stopped"
        compgen -G "$run/checkpoints/*/model.safetensors" >/dev/null || fail 'a logout saved nothing'
    done
}

errors() {
    expect 0 --version
    expect 0 devices
    says '^vulkan:0 ' stdout
    says '^cpu ' stdout
    cat stdout
    expect 2 train --data=builtin:stories --device=tpu
    expect 7 train --data='C:\no\such folder' --device=cpu
    says 'wgpt prepare' stderr
    printf 'data = "C:\\Users\\a"\n' >a.toml
    expect 2 train a.toml
    says "'single quotes'" stderr
    # The name of a device is not a folder.
    local code=0
    wgpt train --preset=demo --device=cpu --max_iters=1 --run=NUL >stdout 2>stderr </dev/null || code=$?
    ((code > 0 && code < 10)) || fail "a run called NUL exited with $code"
    says '^error: ' stderr
    # Without a driver, wgpt prints a message and uses the CPU.
    (
        export VK_DRIVER_FILES=$work/none.json
        expect 4 train --preset=demo --device=vulkan --run=none
        says '^error: .*no device' stderr
        says "GPU's maker" stderr
    )
    echo 'ok: errors'
}

screenshot() {
    import -window root "$shots/$1.png" 2>/dev/null || true
}

visible_window() {
    window=$(xdotool search --onlyvisible --name 'wgpt$' 2>/dev/null | tail -n 1)
    [[ -n $window ]]
}

key() {
    xdotool windowfocus --sync "$window" key --clearmodifiers "$1"
}

steps_in_window() {
    (($(cat out/*-1/events.jsonl 2>/dev/null | grep -c '"event":"step"') > 10))
}

# A text is opened, trained on and stopped, by keyboard.
window() {
    mkdir window
    cd window
    local number
    for number in $(seq 400); do
        echo "The $number. fox of the village saw $((number * 7 % 13)) red baskets and went home."
    done >foxes.txt
    WGPT_DEVICE=vulkan:0 WGPT_MAX_ITERS=100000 WGPT_EVAL_ITERS=2 WGPT_LOG_INTERVAL=1 \
        "$wine" "$exe" foxes.txt >stdout 2>stderr </dev/null &
    local program=$!
    wait_for 'the window' 120 visible_window
    wait_for 'the text is prepared' 60 test -e data/foxes/meta.json
    sleep 2
    screenshot window
    key ctrl+Return
    wait_for 'ten steps of a run of the window' 180 steps_in_window
    sleep 2
    screenshot running
    key ctrl+period
    wait_for 'the run stops' 120 grep -q '"event":"done"' out/*-1/events.jsonl
    sleep 2
    screenshot stopped
    kill $program
    wait $program 2>/dev/null || true

    WGPT_DEVICE=cpu wgpt --demo --screenshot-to demo.png >stdout 2>stderr </dev/null ||
        fail 'the window takes no screenshot'
    cp demo.png "$shots/demo.png"
    cd ..
    echo "ok: the window; screenshots are in $shots"
}

compare cpu
compare vulkan:0 "${short[@]}"
interruptions
logout
other_commands
errors
window
echo 'all runs agree'

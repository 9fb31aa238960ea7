#!/usr/bin/env bash
# Checks, where there is no NVIDIA card, what can be checked there of a wgpt with CUDA in it.
#
#   scripts/cuda-check.sh WGPT
#
# First without a driver: it says so, and computes on the other devices. Then with a driver that
# computes nothing (cuda-driver.c): the kernels of training and evaluation compile to PTX, for cards
# of several generations and with no toolkit to help; and a run goes on elsewhere. Needs a C compiler.
# Where the toolkit's ptxas is in PATH, it has to accept that PTX.
#
# Where there is a card, it says that scripts/gpu-check.sh is the one to run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
wgpt=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for variable in "${!WGPT_@}"; do
    unset "$variable"
done

if [[ -z ${XDG_RUNTIME_DIR:-} ]]; then
    # Vulkan's loader warns without one.
    export XDG_RUNTIME_DIR=$work/runtime
    mkdir -m 700 "$XDG_RUNTIME_DIR"
fi

# Compute capabilities, each with the version of the oldest driver that is promised for it.
cards=(61:12000 75:12000 86:12000 89:12000 120:12080)

fail() {
    echo "error: $*" >&2
    tail -v -n 20 stdout stderr >&2 || true
    exit 1
}

# expect CODE ARGUMENTS...: runs wgpt, keeps what it says. Whatever it meets, it meets it in words.
expect() {
    local wanted=$1 code=0
    shift
    "$wgpt" "$@" >stdout 2>stderr </dev/null || code=$?
    ((code == wanted)) || fail "wgpt $* ended with $code, not $wanted"
    ! grep -Eqi 'panicked|backtrace|dlopen|unable to dynamically load' stderr ||
        fail "wgpt $* speaks of its inside"
}

# says PATTERN FILE
says() {
    grep -Eq "$1" "$2" || fail "no line of $2 has: $1"
}

tiny=(--n_layer=1 --n_head=1 --n_embd=16 --block_size=16 --batch_size=2
    --gradient_accumulation_steps=1)
run=(--preset=demo "${tiny[@]}" --eval_iters=1 --warmup_iters=0 --sample_tokens=3)

without_a_driver() {
    expect 0 devices
    says '^cpu ' stdout
    says '^note: no cuda device: ' stderr
    [[ $(wc -l <stderr) == 1 ]] || fail 'the note is not one line'
    cat stdout stderr

    local more
    for more in -q --no-supervise; do
        expect 4 train --device=cuda "${run[@]}" --max_iters=2 --run=asked "$more"
        says '^error: no device `cuda:0`: ' stderr
        says '^ +hint: .*driver' stderr
    done
    cat stderr

    expect 0 train --device=auto "${run[@]}" --max_iters=2 --run=auto
    says '^done after 2 iterations' stdout
    grep '^device: ' stderr || fail 'it does not say which device it took'
}

# compiles ARGUMENTS...: that wgpt runs on CUDA and that no kernel was left out. One that does not
# compile is a warning of cubecl's.
compiles() {
    expect 0 "$@" -v --device=cuda:0
    ! grep -Eqi 'an? (launch )?error happened|compilation' stderr || fail "wgpt $*: kernels are missing"
}

# Products of a model wide enough for tensor cores: in float32 none may read a tf32, the others
# must, and a card without tensor cores for tf32 says so.
numbers() {
    local card dtype
    local wide=(bench --only=steps --no-compare --preset=gpt2 --n_layer=1 --n_head=2 --n_embd=128
        --block_size=128 --batch_size=2 --vocab_size=256)
    for card in 86:12000 120:12080; do
        export CUDA_DRIVER_CAPABILITY=${card%:*} CUDA_DRIVER_VERSION=${card#*:}
        for dtype in float32 tf32 bfloat16; do
            rm -f ptx/*
            compiles "${wide[@]}" --dtype=$dtype
            case $dtype in
                float32) ! grep -lq 'tf32\|bf16' ptx/*.ptx || fail 'float32 is not float32' ;;
                tf32) grep -lq 'tf32' ptx/*.ptx || fail 'no product reads a tf32' ;;
                bfloat16) grep -lq 'mma.*bf16' ptx/*.ptx || fail 'no product is in bfloat16' ;;
            esac
            echo "compute capability $CUDA_DRIVER_CAPABILITY: products in $dtype"
        done
    done
    export CUDA_DRIVER_CAPABILITY=75 CUDA_DRIVER_VERSION=12000
    expect 2 "${wide[@]}" --device=cuda:0 --dtype=tf32
    says 'does not compute in tf32; it does in float32' stderr
}

with_a_driver() {
    local card file at
    mkdir driver ptx
    "${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -o driver/libcuda.so.1 \
        "$here/cuda-driver.c"
    export LD_LIBRARY_PATH=$PWD/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CUDA_DRIVER_PTX=$PWD/ptx
    # A toolkit may bring functions that a driver does not.
    export CUDA_PATH=$PWD/no-toolkit

    expect 0 devices
    says '^cuda:0 +a card that computes nothing' stdout
    ! grep -q 'no cuda device' stderr || fail 'the card is not seen'

    for card in "${cards[@]}"; do
        export CUDA_DRIVER_CAPABILITY=${card%:*} CUDA_DRIVER_VERSION=${card#*:}
        rm -f ptx/*
        # With GELU's tanh, then exact and with dropout.
        compiles bench --only=steps --no-compare --preset=gpt2 "${tiny[@]}" --vocab_size=65
        compiles bench --only=steps --no-compare --preset=shakespeare-char "${tiny[@]}" \
            --vocab_size=65 --dropout=0.2
        at=$(find ptx -name '*.ptx' | wc -l)
        for file in ptx/*.ptx; do
            if command -v ptxas >/dev/null; then
                ptxas -arch="$(sed -n 's/^\.target \([a-z0-9_]*\).*/\1/p' "$file")" \
                    -o /dev/null "$file" || fail "ptxas refuses $file"
            fi
        done
        echo "compute capability $CUDA_DRIVER_CAPABILITY, CUDA $CUDA_DRIVER_VERSION: $at kernels$(
            command -v ptxas >/dev/null && echo ', which ptxas accepts')"
    done
    numbers
    unset CUDA_DRIVER_CAPABILITY CUDA_DRIVER_VERSION

    # The card's zeros are no losses, but the run folder is whole.
    compiles train "${run[@]}" --max_iters=2 --run=moving
    expect 0 train --device=cpu --resume --run=moving --max_iters=4
    compiles train --resume --run=moving --max_iters=6
    says '^done after 6 iterations' stdout
    echo 'a run went from CUDA to the processor and back'

    # More than the card has: half the micro-batch at a time until it is not.
    export CUDA_DRIVER_MEMORY=100
    expect 0 train --preset=demo --n_layer=2 --n_head=2 --n_embd=128 --block_size=128 \
        --batch_size=64 --gradient_accumulation_steps=1 --max_iters=2 --eval_iters=1 \
        --eval_batch_size=1 --warmup_iters=0 --sample_tokens=0 --vram_budget=none \
        --grad_checkpoint=false --device=cuda:0 --run=large --json
    says '"event":"replan","reason":"out_of_memory"' stdout
    says '"event":"done","iter":2' stdout
    unset CUDA_DRIVER_MEMORY
    echo "out of memory: $(grep -c '"event":"replan"' stdout) smaller plans, then it was done"
}

expect 0 devices --json
if grep -q '"id":"cuda:' stdout; then
    echo 'an NVIDIA card is here: scripts/gpu-check.sh checks it'
    exit
fi
without_a_driver
with_a_driver

#!/usr/bin/env bash
# Checks a wgpt that was built with CUDA, on a machine without an NVIDIA GPU.
#
#   scripts/cuda-check.sh WGPT [TESTS]
#
# Without a driver, wgpt must say so and compute on the other devices. With a driver that computes
# nothing (cuda-driver.c), the kernels of training and evaluation must compile to PTX, for GPUs of
# several generations and without the toolkit, and a run must continue on another device. wgpt's own
# kernels (shaders/cuda) then compute on the CPU, and must be right as wgpt launches them. With a
# cuBLASLt that multiplies on the CPU (cublas-stub.c), products must be right: in the program, and in
# the library's own tests, if TESTS is their program (cargo test --release --features cuda --lib
# --no-run). Needs C and C++ compilers. If the toolkit's ptxas is in PATH, it must accept that PTX without
# large spills of registers. If the variable KEEP_PTX is set, it is a folder for the PTX of products and
# attention, which scripts/gpu-compilers.sh reads.
#
# On a machine with an NVIDIA GPU, use scripts/gpu-check.sh.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
wgpt=$(realpath "$1")
tests=${2:+$(realpath "$2")}
[[ -z ${KEEP_PTX:-} ]] || KEEP_PTX=$(realpath -m "$KEEP_PTX")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# What the kernels of such a GPU compute is not worth remembering.
export XDG_CACHE_HOME=$work/cache
for variable in "${!WGPT_@}"; do
    unset "$variable"
done

# Compute capabilities, each with the oldest driver version that supports it.
gpus=(61:12000 75:12000 86:12000 89:12000 120:12080)

fail() {
    echo "error: $*" >&2
    tail -v -n 20 stdout stderr >&2 || true
    exit 1
}

# expect CODE ARGUMENTS...: runs wgpt and checks its exit code and that no internal error occurs.
expect() {
    local wanted=$1 code=0
    shift
    "$wgpt" "$@" >stdout 2>stderr </dev/null || code=$?
    ((code == wanted)) || fail "wgpt $* exited with $code, not $wanted"
    ! grep -Eqi 'panicked|backtrace|dlopen|unable to dynamically load' stderr ||
        fail "wgpt $* printed an internal error"
}

# says PATTERN FILE
says() {
    grep -Eq "$1" "$2" || fail "no line of $2 matches: $1"
}

tiny=(--n_layer=1 --n_head=1 --n_embd=16 --block_size=16 --batch_size=2
    --gradient_accumulation_steps=1)
run=(--preset=demo "${tiny[@]}" --eval_iters=1 --warmup_iters=0 --sample_tokens=3)

without_a_driver() {
    expect 0 devices
    says '^cpu ' stdout
    says '^note: no cuda device: ' stderr
    [[ $(wc -l <stderr) == 1 ]] || fail 'stderr has more than the note'
    cat stdout stderr

    local more
    for more in -q --no-supervise; do
        expect 4 train --device=cuda "${run[@]}" --max_iters=2 --run=named "$more"
        says '^error: no device `cuda:0`: ' stderr
        says '^ +hint: .*driver' stderr
    done
    cat stderr

    expect 0 train --device=auto "${run[@]}" --max_iters=2 --run=auto
    says '^done after 2 iterations' stdout
    grep '^device: ' stderr || fail 'wgpt train does not name its device'
}

# compiles ARGUMENTS...: runs wgpt on CUDA, and checks that every kernel compiles. cubecl only warns
# about a kernel that does not. None would pass a test of what it computes.
compiles() {
    expect 0 "$@" -v --device=cuda:0 --no-self-test
    ! grep -Eqi 'an? (launch )?error happened|compilation' stderr || fail "wgpt $*: a kernel did not compile"
}

# uses KERNEL PATTERN: checks that a kernel of this name exists, and that all of them contain the
# instruction.
uses() {
    local files file
    files=$(grep -lE "^\.visible \.entry $1" ptx/*.ptx) || fail "no kernel is called $1"
    for file in $files; do
        grep -Eq "$2" "$file" || fail "$(grep -m 1 '\.entry' "$file") has no $2"
    done
}

# assembles [DTYPE]: checks that the toolkit's ptxas, if it is in PATH, accepts every kernel. An inner loop
# may spill a few registers, which is printed. A kernel that spills more than `most` bytes has too large
# tiles. Without tensor cores, the gradients of attention spill up to 1092.
assembles() {
    local file name bytes most=2048
    case ${1:-float32} in
        tf32 | bfloat16 | float16) most=32 ;;
    esac
    command -v ptxas >/dev/null || return 0
    for file in ptx/*.ptx; do
        ptxas -v -arch="$(sed -n 's/^\.target \([a-z0-9_]*\).*/\1/p' "$file")" -o /dev/null "$file" \
            >assembled 2>&1 || fail "ptxas refuses $file"
        name=$(sed -n '/\.entry/{s/.*\.entry \([a-z0-9_]*\)_.*/\1/p;q}' "$file")
        bytes=$(sed -n 's/.* \([0-9]*\) bytes spill stores.*/\1/p' assembled | sort -n | tail -n 1)
        ((${bytes:-0} == 0)) || echo "  spills $bytes bytes: $name"
        ((${bytes:-0} <= most)) || fail "$name needs more registers than there are"
    done
}

# keep DTYPE: keeps the kernels of a compute capability, if the caller wants them.
keep() {
    [[ -n ${KEEP_PTX:-} ]] || return 0
    mkdir -p "$KEEP_PTX/$CUDA_DRIVER_CAPABILITY/$1"
    cp ptx/*.ptx "$KEEP_PTX/$CUDA_DRIVER_CAPABILITY/$1"
}

# Compiles products and attention of a model as wide as their tiles. In float32 none may read a tf32. In
# the other dtypes they must use the tensor cores, with the instructions in docs/kernels.md. On a GPU
# without tensor cores wgpt must say so, and on a GPU without tf32 it must refuse tf32.
dtypes() {
    local gpu dtype
    local wide=(bench --only=steps --no-compare --preset=gpt2 --n_layer=1 --n_head=2 --n_embd=128
        --block_size=128 --batch_size=2 --vocab_size=256)
    for gpu in 80:12000 86:12000 89:12000 90:12000 120:12080; do
        export CUDA_DRIVER_CAPABILITY=${gpu%:*} CUDA_DRIVER_VERSION=${gpu#*:}
        for dtype in float32 tf32 bfloat16 float16; do
            rm -f ptx/*
            compiles "${wide[@]}" --dtype=$dtype
            case $dtype in
                float32) ! grep -lq 'mma\|tf32\|bf16' ptx/*.ptx || fail 'float32 uses tensor cores' ;;
                tf32)
                    uses product 'mma\.sync\.aligned\.m16n8k8.*tf32'
                    uses '(attend|backward_queries|backward_keys)' 'mma\.sync.*tf32'
                    ;;
                *)
                    uses product "mma\.sync\.aligned\.m16n8k16.*\.${dtype/float/f}"
                    uses product 'ldmatrix\.sync\.aligned'
                    uses '(attend|backward_queries|backward_keys)' 'mma\.sync'
                    ;;
            esac
            assembles "$dtype"
            keep $dtype
            ! grep -q 'no tensor cores' stderr || fail "compute capability ${gpu%:*} has tensor cores"
            echo "compute capability $CUDA_DRIVER_CAPABILITY: products in $dtype"
        done
    done
    export CUDA_DRIVER_CAPABILITY=75 CUDA_DRIVER_VERSION=12000
    rm -f ptx/*
    compiles "${wide[@]}" --dtype=float16
    uses matmul 'wmma\.mma\.sync'
    keep float16
    compiles "${wide[@]}" --dtype=bfloat16
    says '^warning: .* has no tensor cores for bfloat16' stderr
    expect 2 "${wide[@]}" --device=cuda:0 --dtype=tf32
    says 'does not support tf32; it supports float32' stderr
    echo 'compute capability 75: products in float16, and in bfloat16 without tensor cores'
}

# The kernels that take many tensors must not grow with their number: compilers took 19 seconds for one of 180 KB.
first_step() {
    rm -f ptx/*
    compiles bench --only=steps --no-compare --preset=gpt2 --batch_size=1 --dtype=bfloat16 --json
    local launches
    launches=$(sed -n 's/.*"launches": *\([0-9]*\).*/\1/p' stdout)
    ((launches >= 200 && launches <= 280)) || fail "a step of GPT-2 takes $launches launches"
    [[ -z $(find ptx -size +64k) ]] || fail "a kernel is too large: $(find ptx -size +64k | xargs grep -h '\.entry')"
    echo "a step of GPT-2: $launches launches, and $(find ptx -name '*.ptx' | wc -l) kernels of at most 64 KiB"
}

# own_right ROW: checks a row of bfloat16's table, with an error below what is allowed.
own_right() {
    says "^ +$1 +[0-9.e-]+ +[0-9.e-]+\$" bfloat16
}

# Lets wgpt's own kernels compute on the CPU, through the emulator of their tests. The other kernels compute
# nothing, so the only right rows are those that need no other.
computes() {
    python3 "$here/cuda-kernels.py" libraries kernels --only product.bf16 attend.bf16.64 \
        backward_queries.bf16.64 backward_keys.bf16.64 update_weights
    CUDA_DRIVER_KERNELS=$PWD/kernels expect 1 doctor --kernels --device=cuda:0
    sed -n '/^bfloat16 /,/^float16 /p' stdout >bfloat16
    local row
    for row in 'linear of whole tiles' \
        'linear of whole tiles backward: weight' \
        'linear of whole tiles backward: bias' \
        'linear of whole tiles backward: weight, in large tiles' \
        'linear of whole tiles backward: input, in large tiles' \
        'linear of whole tiles backward: bias, in large tiles' \
        'linear of an activation, whole tiles backward: input, in large tiles' \
        'linear of whole tiles backward: input, over many rows' \
        'attention of whole tiles' \
        'attention of whole tiles backward' \
        'adamw: weight' \
        'adamw: copy in half precision' \
        'adamw: mean' \
        'adamw: square'; do
        own_right "$row"
    done
    echo "wgpt's own kernels computed on the CPU"
}

with_a_driver() {
    local gpu kernels
    mkdir driver ptx
    "${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -o driver/libcuda.so.1 \
        "$here/cuda-driver.c"
    export LD_LIBRARY_PATH=$PWD/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CUDA_DRIVER_PTX=$PWD/ptx
    # A toolkit may contain functions that a driver does not.
    export CUDA_PATH=$PWD/no-toolkit

    CUDA_DRIVER_CONTEXT=context expect 0 devices
    says '^cuda:0 +a GPU that computes nothing.* float32, tf32, bfloat16, float16' stdout
    ! grep -q 'no cuda device' stderr || fail 'the GPU is not listed'
    [[ ! -e context ]] || fail 'listing the GPU takes memory of it'
    CUDA_DRIVER_CAPABILITY=75 expect 0 devices
    says '^cuda:0 .* float32, bfloat16, float16' stdout

    for gpu in "${gpus[@]}"; do
        export CUDA_DRIVER_CAPABILITY=${gpu%:*} CUDA_DRIVER_VERSION=${gpu#*:}
        rm -f ptx/*
        # With the tanh form of GELU, then with the exact form and dropout.
        compiles bench --only=steps --no-compare --preset=gpt2 "${tiny[@]}" --vocab_size=65 \
            --dtype=float32
        compiles bench --only=steps --no-compare --preset=shakespeare-char "${tiny[@]}" \
            --vocab_size=65 --dropout=0.2 --dtype=float32
        kernels=$(find ptx -name '*.ptx' | wc -l)
        assembles
        echo "compute capability $CUDA_DRIVER_CAPABILITY, CUDA $CUDA_DRIVER_VERSION: $kernels kernels$(
            command -v ptxas >/dev/null && echo ', accepted by ptxas')"
    done
    dtypes
    unset CUDA_DRIVER_CAPABILITY CUDA_DRIVER_VERSION
    first_step
    computes

    # The test of the kernels refuses a GPU that computes nothing.
    expect 4 train --device=cuda:0 "${run[@]}" --max_iters=2 --run=refused
    says '^error: a GPU that computes nothing .* failed the test of its kernels in float32' stderr

    # The losses are zeros, but the run folder is complete.
    compiles train "${run[@]}" --max_iters=2 --run=moving
    grep -q '^dtype = "bfloat16"' moving/config.toml || fail '`auto` is not bfloat16'
    expect 2 train --device=cpu --resume --run=moving --max_iters=4
    says 'cannot continue' stderr
    expect 0 train --device=cpu --resume --run=moving --max_iters=4 --dtype=auto
    compiles train --resume --run=moving --max_iters=6
    says '^done after 6 iterations' stdout
    echo 'a run continued from CUDA on the CPU and back'

    # This needs more memory than the GPU has, so wgpt halves the micro-batch until it fits.
    export CUDA_DRIVER_MEMORY=60
    expect 0 train --preset=demo --n_layer=2 --n_head=2 --n_embd=128 --block_size=128 \
        --batch_size=64 --gradient_accumulation_steps=1 --max_iters=2 --eval_iters=1 \
        --eval_batch_size=1 --warmup_iters=0 --sample_tokens=0 --vram_budget=none \
        --grad_checkpoint=false --device=cuda:0 --no-self-test --run=large --json
    says '"event":"replan","reason":"out_of_memory"' stdout
    says '"event":"done","iter":2' stdout
    unset CUDA_DRIVER_MEMORY
    echo "out of memory: $(grep -c '"event":"replan"' stdout) smaller plans, then the run finished"
}

# cublas [CFLAGS]: builds the library in a new folder, and has wgpt use it.
cublas() {
    export WGPT_CUBLAS_LIBRARY
    WGPT_CUBLAS_LIBRARY=$(mktemp -d "$PWD/cublas.XXXX")
    "${CC:-cc}" -std=c11 -O3 -ffast-math -Wall -Wextra -Werror "$@" -shared -fPIC \
        -o "$WGPT_CUBLAS_LIBRARY/libcublasLt.so.12" "$here/cublas-stub.c" -lm
}

# unusable REASON: checks that wgpt names the library, says why it does not use it, and runs without it.
unusable() {
    expect 0 devices
    says "^warning: cuBLASLt is not used: $WGPT_CUBLAS_LIBRARY/libcublasLt\.so\.12: .*$1" stderr
    says "^products: wgpt's own kernels$" stdout
    compiles train "${run[@]}" --max_iters=1 --run="unusable-$RANDOM" --dtype=bfloat16
    [[ $(grep -c '^warning: cuBLASLt is not used: ' stderr) == 1 ]] || fail 'not one warning'
    says "^products: wgpt's own kernels$" stderr
    compiles train "${run[@]}" --max_iters=1 --run="off-$RANDOM" --dtype=bfloat16 --cublas=off
    ! grep -q cuBLASLt stderr || fail '--cublas=off warns about it'
}

# right COUNT DTYPES PATTERN: checks that cuBLASLt computes the kernels of the pattern right.
right() {
    local lines
    lines=$(awk -v dtypes="^($2) .*by cuBLASLt " '$0 ~ dtypes { on = 1 } /^$/ { on = 0 } on' stdout |
        grep -E "^  $3") || true
    [[ $(wc -l <<<"$lines") == "$1" ]] || fail "not $1 products like $3: $lines"
    ! grep -E ' (wrong|not finite)$|^  [^0-9]*$' <<<"$lines" || fail 'cuBLASLt gets wrong operands'
}

with_cublas() {
    cublas
    expect 0 devices
    says "^products: cuBLASLt 12\.8\.5 from $WGPT_CUBLAS_LIBRARY/libcublasLt\.so\.12$" stdout
    expect 0 devices --json
    says '"name":"cuBLASLt 12.8.5"' stdout
    # By the system's loader, and in an environment of Python.
    local folder=$WGPT_CUBLAS_LIBRARY packages=venv/lib/python3.12/site-packages/nvidia/cublas/lib
    WGPT_CUBLAS_LIBRARY='' LD_LIBRARY_PATH=$folder:$LD_LIBRARY_PATH expect 0 devices
    says '^products: cuBLASLt 12\.8\.5 from libcublasLt\.so\.12$' stdout
    mkdir -p "$packages"
    cp "$folder/libcublasLt.so.12" "$packages"
    WGPT_CUBLAS_LIBRARY='' VIRTUAL_ENV=$PWD/venv expect 0 devices
    says "^products: cuBLASLt 12\.8\.5 from $PWD/$packages/libcublasLt\.so\.12$" stdout

    # What other kernels compute is nothing: casts of weights in float16, of biases but in tf32, and activations.
    expect 1 doctor --kernels --device=cuda:0
    right 18 '.*' 'linear of whole tiles backward: (weight|bias)'
    right 6 'tf32|bfloat16' 'linear of whole tiles backward: input'
    right 6 'tf32|bfloat16' 'linear of an activation, whole tiles backward: input'
    right 3 'tf32' 'linear of whole tiles +[0-9]'
    ! grep -q '^cublas-stub: ' stderr || fail 'cuBLASLt refuses what wgpt asks for'
    echo 'the operands of cuBLASLt are right'

    compiles train "${run[@]}" --max_iters=2 --run=products --dtype=bfloat16 --json
    says '"products":"cuBLASLt 12\.8\.5"' stdout
    says '^products: cuBLASLt 12\.8\.5 from ' stderr
    grep -q '"products": *"cuBLASLt 12\.8\.5"' products/checkpoints/*/state.json ||
        fail 'a checkpoint does not name the library'
    compiles train --resume --run=products --max_iters=4
    ! grep -q '^warning: matrix products' stderr || fail 'a warning about the same library'
    compiles train --resume --run=products --max_iters=6 --cublas=off
    says '^warning: matrix products were computed by cuBLASLt 12\.8\.5 .* own kernels' stderr
    echo 'a run says which library computes its products'

    # Products that are wrong are computed by own kernels, which are wrong too on such a GPU.
    XDG_CACHE_HOME=$PWD/untested expect 4 train --device=cuda:0 "${run[@]}" --max_iters=2 --run=slower --dtype=bfloat16
    says '^testing the kernels of .* in bfloat16 by cuBLASLt 12\.8\.5, once' stderr
    says '^testing the kernels of .* in bfloat16, once' stderr
    [[ $(grep -c '^testing the kernels of ' stderr) == 2 ]] || fail 'not by cuBLASLt, then by own kernels'
    echo 'the test of the kernels tries without cuBLASLt'

    CUBLAS_STUB_VERSION=110300 unusable 'version 11\.3\.0, and wgpt knows 12 and 13'
    CUBLAS_STUB_VERSION=130000 unusable 'version 13\.0\.0, and .* for CUDA 12\.8: update the driver'
    # Without sums over rows in the product, there is a kernel for them.
    CUBLAS_STUB_REFUSES=256 compiles train "${run[@]}" --max_iters=1 --run=refused --dtype=bfloat16
    if [[ -n $tests ]]; then
        "$tests" --ignored --nocapture every_product_of_cublas >stdout 2>stderr || fail 'products are wrong'
        says '^test result: ok. 1 passed' stdout
        ! grep -E 'cublas-stub: | refuses ' stderr || fail 'cuBLASLt refuses what wgpt asks for'
        echo 'every product of cuBLASLt is right'
    fi
    cublas -DcublasLtMatmul=another_function
    unusable 'no function `cublasLtMatmul`'
    echo 'no library' >"$WGPT_CUBLAS_LIBRARY/libcublasLt.so.12"
    unusable ''
    unset WGPT_CUBLAS_LIBRARY
    echo 'a cuBLASLt that cannot be used is named'
}

expect 0 devices --json
if grep -q '"id":"cuda:' stdout; then
    echo 'this machine has an NVIDIA GPU: use scripts/gpu-check.sh'
    exit
fi
without_a_driver
with_a_driver
with_cublas

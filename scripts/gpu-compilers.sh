#!/usr/bin/env bash
# Compiles every kernel of a preset's training for GPUs that are not here, with Mesa's compilers, and
# checks what became of it: registers, spills, resident warps or waves, and the instructions of the inner
# loop.
#
#   scripts/gpu-compilers.sh DRIVERS                prints a table; docs/tables/gpu-compilers.tsv must
#                                                   list the same kernels
#   scripts/gpu-compilers.sh DRIVERS --write        writes docs/tables/gpu-compilers.tsv
#   scripts/gpu-compilers.sh DRIVERS "RX 7900 XTX"  only for this GPU; gpu-compilers/tables.py lists them
#   PTX=FOLDER scripts/gpu-compilers.sh DRIVERS     also CUDA's kernels; FOLDER is from scripts/cuda-check.sh
#   PTX=FOLDER scripts/gpu-compilers.sh DRIVERS cuda    only those
#
# DRIVERS is a folder for the drivers, which are downloaded once, see lavapipe/mesa.sh: NVK behind a stub
# (tests/driver/nvidia) for NVIDIA, and RADV without hardware for AMD. If the variable KERNELS is set, it is
# a folder with kernels, else cargo writes them. Fails if a kernel does not compile, if one spills registers,
# and if the inner loop of a product loads 16-bit elements one by one. tables.py lists the exceptions.
#
# Needs x86-64, apt, a C compiler, the headers of Vulkan (libvulkan-dev) and Python.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/scripts/lavapipe/mesa.sh"

if (($# == 0)); then
    echo 'usage: scripts/gpu-compilers.sh DRIVERS [--write] [GPU...]' >&2
    exit 2
fi
mkdir -p "$1"
drivers=$(realpath "$1")
shift
options=()
if [[ ${1:-} == --write ]]; then
    options+=(--write)
    shift
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Later versions of RADV make no device without hardware.
radv=$drivers/radv
if [[ ! -e $radv/lib/libwgpt_radv.so ]]; then
    (
        unpack_packages bookworm "$work/radv" 'mesa-vulkan-drivers=25.0.7*'
        copy_libraries "$work/radv" "$radv/lib"
        link_driver "$radv/lib/libwgpt_radv.so" libvulkan_radeon.so
    )
fi
"$root/scripts/lavapipe.sh" "$drivers" >/dev/null
"$root/tests/driver/nvidia/build.sh" "$drivers"
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -o "$work/compile" "$root/scripts/gpu-compilers/compile.c" -ldl

# NVIDIA's assembler and disassembler are a part of a package of Python.
if [[ -n ${PTX:-} ]]; then
    if [[ ! -e $drivers/cuda/nvdisasm ]]; then
        python3 -m venv "$work/python"
        "$work/python/bin/pip" download --quiet --no-deps --only-binary=:all: --dest "$work" triton==3.5.1
        python3 -m zipfile --extract "$work"/triton-*.whl "$work/triton"
        mkdir -p "$drivers/cuda"
        install "$work"/triton/triton/backends/nvidia/bin/{ptxas,nvdisasm} "$drivers/cuda"
    fi
    options+=(--ptx "$PTX" --cuda "$drivers/cuda")
fi

kernels=${KERNELS:-$work/kernels}
if [[ -z ${KERNELS:-} && $* != cuda ]]; then
    mkdir "$kernels"
    (cd "$root" && KERNELS=$kernels cargo test --release --test shaders -- --ignored spirv_of_gpus)
fi
python3 "$root/scripts/gpu-compilers/tables.py" "$kernels" "$work/compile" \
    "$drivers/lib/libwgpt_nvk.so" "$radv/lib/libwgpt_radv.so" "$root/docs/tables/gpu-compilers.tsv" "${options[@]}" "$@"

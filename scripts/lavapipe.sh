#!/usr/bin/env bash
# Unpacks a newer software Vulkan next to the system's: the lavapipe of Debian 13's backports, the first
# Mesa in a stable Debian with cooperative matrices. The tests of those kernels run on it:
#
#   scripts/lavapipe.sh FOLDER
#   export VK_DRIVER_FILES=FOLDER/icd.json LP_NATIVE_VECTOR_WIDTH=256
#
# Needs x86-64 and apt, on Debian 12 or newer. It installs nothing: it downloads packages, with the keys
# that the system trusts, unpacks their libraries into FOLDER, and prints the two variables. A folder that
# has them already is kept.
set -euo pipefail
source "$(dirname "$0")/lavapipe/mesa.sh"

if (($# != 1)); then
    echo 'usage: scripts/lavapipe.sh FOLDER' >&2
    exit 2
fi
mkdir -p "$1"
folder=$(realpath "$1")

if [[ ! -e $folder/lib/libwgpt_lavapipe.so ]]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    unpack_packages trixie "$work" mesa-vulkan-drivers
    copy_libraries "$work" "$folder/lib"
    link_driver "$folder/lib/libwgpt_lavapipe.so" libvulkan_lvp.so
fi
write_manifest "$folder/icd.json" lib/libwgpt_lavapipe.so

echo "VK_DRIVER_FILES=$folder/icd.json"
# Without this, the driver uses the CPU's widest vectors, and its matrices crash with them.
echo 'LP_NATIVE_VECTOR_WIDTH=256'

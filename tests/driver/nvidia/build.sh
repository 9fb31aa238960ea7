#!/usr/bin/env bash
# Puts an NVIDIA GPU that computes nothing next to the drivers that scripts/lavapipe.sh has unpacked:
#
#   build.sh FOLDER        FOLDER is the folder of scripts/lavapipe.sh
#
# Writes FOLDER/nvidia.json, which VK_DRIVER_FILES names, and FOLDER/lib/libwgpt_nvk.so, NVK with the
# stub in front.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../../scripts/lavapipe/mesa.sh"
folder=$(realpath "${1:?write the folder of scripts/lavapipe.sh}")

# The headers of Debian 13, because Debian 12's kernel knows nothing of VM_BIND. Only those of the
# graphics drivers are kept: the others belong to this machine's C library.
if [[ ! -e $folder/include/drm ]]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    unpack_packages trixie "$work" libdrm-dev/trixie linux-libc-dev/trixie
    mkdir -p "$folder/include"
    mv "$work"/usr/include/{xf86drm.h,libdrm,drm} "$folder/include"
fi
warnings=(-std=gnu11 -Wall -Wextra -Werror)
link_driver "$folder/lib/libwgpt_nvk.so" libvulkan_nouveau.so "${warnings[@]}" "$here/stub.c" \
    -isystem "$folder/include" -isystem "$folder"/include/libdrm -isystem "$folder/include/libdrm/nouveau"
"${CC:-cc}" "${warnings[@]}" -O2 -shared -fPIC -o "$folder/lib/libwgpt_nvidia.so" "$here/front.c" -ldl
write_manifest "$folder/nvidia.json" lib/libwgpt_nvidia.so

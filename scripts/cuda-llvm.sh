#!/usr/bin/env bash
# Makes `cargo build --features cuda` use Debian's LLVM instead of downloading one.
#
#   scripts/cuda-llvm.sh            links it; does nothing if the build has an LLVM already
#   scripts/cuda-llvm.sh --remove   removes the links
#
# The first build with `cuda` downloads the LLVM that generates the kernels' PTX, from GitHub into the
# user's data folder, on Linux and Windows alike. This script is for machines that cannot or should not
# download it. It needs Linux with apt, and root or sudo to install packages.
#
# The build (crate tracel-llvm-bundler) looks for the folder tracel/tracel-llvm-VERSION in
# $XDG_DATA_HOME, else ~/.local/share. VERSION is the crate's own, as in Cargo.lock. A folder with the
# file .tracel-llvm-installed is used unchanged, and its bin/llvm-config names headers and libraries.
# This script makes that folder from links. It never touches a downloaded LLVM.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)

# This is Debian's newest LLVM. The build asks for a newer one, but uses nothing that this one lacks.
llvm=22
# LLVM and the libraries that it links.
packages=("llvm-$llvm-dev" libzstd-dev zlib1g-dev libxml2-dev libz3-dev)

sentinel=.tracel-llvm-installed
# Marks a folder that this script made.
mark=made-by-cuda-llvm.sh

fail() {
    echo "error: $1" >&2
    [[ -z ${2:-} ]] || echo "  hint: $2" >&2
    exit 1
}

version() {
    awk '/^name = / { name = $3 } /^version = / && name == "\"tracel-llvm-bundler\"" {
        gsub(/"/, "", $3); print $3; exit
    }' "$root/Cargo.lock"
}

# This works like the crate dirs, which ignores a relative path.
data_folder() {
    if [[ ${XDG_DATA_HOME:-} == /* ]]; then
        printf '%s' "$XDG_DATA_HOME"
    elif [[ -n ${HOME:-} ]]; then
        printf '%s' "$HOME/.local/share"
    else
        fail 'neither XDG_DATA_HOME nor HOME is set' 'set HOME to the folder of the user who builds'
    fi
}

install_packages() {
    local package missing=() as_root=()
    for package in "${packages[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -Fqx 'install ok installed' ||
            missing+=("$package")
    done
    command -v c++ >/dev/null || missing+=(g++)
    if ((${#missing[@]} == 0)); then
        return
    fi
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "missing: ${missing[*]}" \
            "as root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    echo "installing ${missing[*]}"
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}" ||
        fail "apt-get could not install ${missing[*]}" \
            "an older Debian or Ubuntu gets LLVM $llvm from https://apt.llvm.org"
}

# Prints the folder's bin/llvm-config. Debian's llvm-config gives one library by its path, where the
# build expects a name. It also lists Polly's libraries, which are in another package and not needed.
write_config() {
    cat <<END
#!/bin/sh
# Debian's llvm-config, in the form that tracel-llvm-bundler reads.
set -e
said=\$("$prefix/bin/llvm-config" "\$@")
printf '%s\n' "\$said" | sed -E \\
    -e 's#(^| )/[^ ]*/lib([^ /]+)\.so#\1-l\2#g' \\
    -e 's#-lPolly(ISL)?( |\$)##g'
END
}

make_folder() {
    local new=$folder.new
    rm -rf "$new"
    mkdir -p "$new/bin"
    ln -s "$prefix/include" "$prefix/lib" "$new/"
    write_config >"$new/bin/llvm-config"
    chmod +x "$new/bin/llvm-config"
    "$new/bin/llvm-config" --link-static --libs >/dev/null ||
        fail "$prefix/bin/llvm-config does not list static libraries" \
            "apt-get install --reinstall llvm-$llvm-dev"
    touch "$new/$sentinel" "$new/$mark"
    # This is one step, so that a build never sees half a folder.
    mv "$new" "$folder"
}

action=${1:-}
[[ $# -le 1 && ($action == '' || $action == --remove) ]] || fail "unknown arguments: $*" \
    'give no arguments, or --remove'
[[ $(uname -s) == Linux ]] || fail "this is for Linux, not $(uname -s)" \
    'build without it: the build downloads its own LLVM'

version=$(version)
[[ -n $version ]] || fail "Cargo.lock does not name tracel-llvm-bundler" \
    'the crates of the cuda feature have changed: check which LLVM they expect'
folder=$(data_folder)/tracel/tracel-llvm-$version
prefix=/usr/lib/llvm-$llvm

if [[ $action == --remove ]]; then
    if [[ -e $folder/$mark ]]; then
        rm -rf "$folder"
        echo "removed $folder"
    else
        echo "this script did not make $folder; nothing was removed"
    fi
    exit
fi

if [[ -e $folder && ! -e $folder/$mark ]]; then
    [[ -e $folder/$sentinel ]] || fail "$folder holds an incomplete download" \
        'remove it and run this again'
    echo "$folder is a downloaded LLVM; nothing to do"
    exit
fi

command -v apt-get >/dev/null || fail 'this machine has no apt-get' \
    "build without this script, or make $folder by hand: see the top of this script"
install_packages
[[ -x $prefix/bin/llvm-config ]] || fail "llvm-$llvm-dev is installed, but not in $prefix" \
    "apt-get install --reinstall llvm-$llvm-dev"
# A correct sentinel stays as it is, because a newer one makes cargo rebuild.
if ! write_config | cmp -s - "$folder/bin/llvm-config"; then
    rm -rf "$folder"
    make_folder
fi
echo "the build will use LLVM $("$prefix/bin/llvm-config" --version) in $prefix, through $folder"

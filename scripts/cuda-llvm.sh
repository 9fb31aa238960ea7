#!/usr/bin/env bash
# Lets `cargo build --features cuda` use Debian's LLVM instead of downloading one.
#
#   scripts/cuda-llvm.sh            puts it in place; does nothing where an LLVM is there already
#   scripts/cuda-llvm.sh --remove   takes away what it put there
#
# Rarely needed: on Linux and Windows alike the first build with `cuda` downloads the LLVM that
# writes the kernels' PTX, from GitHub into the user's data folder. This is for a machine that cannot
# download it, or should not: it needs Debian's packages only, and root or sudo where they are
# missing. Linux with apt.
#
# The build (crate tracel-llvm-bundler) looks for the folder tracel/tracel-llvm-VERSION in
# $XDG_DATA_HOME, else ~/.local/share. VERSION is the crate's own, so Cargo.lock says it. It takes
# a folder that has the file .tracel-llvm-installed as it is, and asks bin/llvm-config in there for
# headers and libraries. This script makes such a folder of links. An LLVM that was downloaded is
# never touched.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)

# The newest that Debian has. The build names a newer one, and uses nothing that this one lacks.
llvm=22
# What LLVM was compiled against comes along when it is linked.
packages=("llvm-$llvm-dev" libzstd-dev zlib1g-dev libxml2-dev libz3-dev)

sentinel=.tracel-llvm-installed
# Tells a folder of this script's from a download.
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

# dirs, the crate that is asked for it, ignores a relative one.
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

# What bin/llvm-config in the folder is. Debian's names one library by its path, where the build
# expects names, and lists Polly's, which are in a package that nothing here uses.
write_config() {
    cat <<END
#!/bin/sh
# Debian's llvm-config, in the words that tracel-llvm-bundler reads.
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
    # In one step: a build never sees half of it.
    mv "$new" "$folder"
}

action=${1:-}
[[ $# -le 1 && ($action == '' || $action == --remove) ]] || fail "unknown arguments: $*" \
    'it takes nothing, or --remove'
[[ $(uname -s) == Linux ]] || fail "this is for Linux, not $(uname -s)" \
    'build without it: the build downloads its own LLVM'

version=$(version)
[[ -n $version ]] || fail "Cargo.lock does not name tracel-llvm-bundler" \
    'the cuda feature has changed: look which LLVM its crates expect'
folder=$(data_folder)/tracel/tracel-llvm-$version
prefix=/usr/lib/llvm-$llvm

if [[ $action == --remove ]]; then
    if [[ -e $folder/$mark ]]; then
        rm -rf "$folder"
        echo "removed $folder"
    else
        echo "$folder is not this script's; nothing was removed"
    fi
    exit
fi

if [[ -e $folder && ! -e $folder/$mark ]]; then
    [[ -e $folder/$sentinel ]] || fail "$folder holds a download that did not end" \
        'remove it, then run this again'
    echo "$folder is a downloaded LLVM; nothing to do"
    exit
fi

command -v apt-get >/dev/null || fail 'there is no apt-get here' \
    "build without this script, or make $folder by hand as its header says"
install_packages
[[ -x $prefix/bin/llvm-config ]] || fail "llvm-$llvm-dev is installed, but not in $prefix" \
    "apt-get install --reinstall llvm-$llvm-dev"
# As it is where it is right: the build begins anew when the sentinel is newer.
if ! write_config | cmp -s - "$folder/bin/llvm-config"; then
    rm -rf "$folder"
    make_folder
fi
echo "the build takes LLVM $("$prefix/bin/llvm-config" --version) in $prefix, by $folder"

#!/usr/bin/env bash
# Builds wgpt.exe on Debian, and tests it under Wine with a software Vulkan.
#
#   scripts/windows.sh build                    builds wgpt.exe and prints its path
#   scripts/windows.sh test [TEST]              runs the test suite, or the tests whose names contain TEST
#   scripts/windows.sh train WGPT [FOLDER]      compares runs with WGPT, a wgpt for Linux: losses,
#                                               kill and resume, texts, plans, errors; screenshots of the
#                                               window go to FOLDER
#   scripts/windows.sh run PROGRAM [ARG...]     runs a program under Wine
#
# The target is x86_64-pc-windows-gnu: rustup's if it is installed (rustup target add), else Debian's
# compiler and the sources of its standard library, which are unpacked and not installed. mingw links.
# The script installs what it needs on x86-64 with apt, as root or by sudo. All its output is in the
# folder `windows` of the target folder. On Windows itself, `cargo build --release` is enough.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
triple=x86_64-pc-windows-gnu
prefix=x86_64-w64-mingw32
folder=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")/windows
exe=$folder/$triple/release/wgpt.exe
wine=/usr/lib/wine/wine64
wineserver=/usr/lib/wine/wineserver64

# Tests that cannot run under Wine, each as NAME: REASON. Tests that need Linux are not built for
# Windows.
not_under_wine=(
    'files_are_replaced_while_they_are_read: Wine 8 cannot rename over a file that is open; Windows 10 can'
    'libraries_print_nothing_in_a_bare_environment: Wine lacks a part of DirectX 12, which wgpu logs as an error'
    'a_closed_stdout_is_no_error: the same line, where devices are listed'
)

fail() {
    echo "error: $*" >&2
    exit 1
}

usage() {
    sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# need PACKAGE...: installs the missing packages.
need() {
    local package missing=() as_root=()
    for package in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]} > 0)) || return 0
    command -v apt-get >/dev/null || fail "no apt-get here, so install these first: ${missing[*]}"
    ((EUID == 0)) || as_root=(sudo)
    "${as_root[@]}" apt-get -qq update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

has_rustup_target() {
    [[ -d $(rustc --print target-libdir --target "$triple" 2>/dev/null) ]]
}

# Unpacks Debian's newest compiler and the sources of its standard library, once.
unpack_compiler() {
    local rust=$folder/rust packages package
    [[ ! -x $folder/rustc ]] || return 0
    rm -rf "$rust" "$rust.debs"
    mkdir -p "$rust" "$rust.debs"
    # The libraries that the compiler needs, but not the rest of a system.
    mapfile -t packages < <(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
        --no-breaks --no-replaces --no-enhances rustc-web |
        grep -Ex '(rustc-web|libstd-rust-web-.+|libllvm[0-9]+)' | sort -u)
    ((${#packages[@]} > 0)) || fail 'apt knows no rustc-web: run apt-get update, or install rustup' \
        "and its target $triple"
    (cd "$rust.debs" && apt-get -qq download "${packages[@]}" rust-web-src)
    for package in "$rust.debs"/*.deb; do
        dpkg-deb --extract "$package" "$rust"
    done
    rm -rf "$rust.debs"
    # Only the compiler may use its libraries, because Wine's driver has its own LLVM.
    cat >"$folder/rustc" <<RUSTC
#!/bin/sh
LD_LIBRARY_PATH=$rust/usr/lib/x86_64-linux-gnu exec $rust/usr/bin/rustc "\$@"
RUSTC
    chmod +x "$folder/rustc"
}

# windows_cargo COMMAND [ARG...]: cargo for Windows.
windows_cargo() {
    local command=$1 std=()
    shift
    need gcc libc6-dev gcc-mingw-w64-x86-64-posix binutils-mingw-w64-x86-64
    mkdir -p "$folder"
    if has_rustup_target; then
        std=(--locked)
    else
        unpack_compiler
        export RUSTC=$folder/rustc RUSTC_BOOTSTRAP=1
        std=("-Zbuild-std=std,panic_abort,panic_unwind")
    fi
    export CARGO_TARGET_DIR=$folder CARGO_INCREMENTAL=0
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=$prefix-gcc-posix
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER="$here/windows.sh run"
    export CC_x86_64_pc_windows_gnu=$prefix-gcc-posix AR_x86_64_pc_windows_gnu=$prefix-ar
    (cd "$root" && cargo "$command" "${std[@]}" --release --target "$triple" "$@")
}

build() {
    local libraries
    windows_cargo build
    mapfile -t libraries < <($prefix-objdump -p "$exe" | sed -n 's/^\tDLL Name: //p' | sort -fu)
    echo "libraries: ${libraries[*]}"
    # A library of mingw would have to be next to the program.
    [[ ! " ${libraries[*]}" =~ ' lib' ]] || fail "$exe needs libraries that Windows does not have"
    [[ $($prefix-objdump -h "$exe") == *' .rsrc '* ]] || fail "$exe has no icon, version and manifest"
    ls -l "$exe"
}

# Makes Wine's folder, once.
set_up_wine() {
    local system=$WINEPREFIX/drive_c/windows/system32
    if [[ ! -e $system/kernel32.dll ]]; then
        mkdir -p "$WINEPREFIX"
        WINEDLLOVERRIDES='mscoree,mshtml,winemenubuilder.exe=' "$wine" wineboot --init >/dev/null 2>&1 ||
            fail "Wine cannot make $WINEPREFIX"
        "$wineserver" --wait
    fi
    [[ -e $system/bcryptprimitives.dll ]] ||
        "$prefix-gcc-posix" -O2 -shared -o "$system/bcryptprimitives.dll" \
            "$here/windows/bcryptprimitives.c" -ladvapi32
}

# Starts a display, without which Wine lists no adapter, and a Wine that stays until this script ends.
# Does nothing in a process of such a session, for example in a test that cargo runs.
start_wine() {
    local display
    [[ -z ${WINE_SESSION:-} ]] || return 0
    need wine64 xvfb mesa-vulkan-drivers libvulkan1 libgl1 libgl1-mesa-dri gcc-mingw-w64-x86-64-posix
    # File names are UTF-8. Wine's DirectX 12 lists an adapter and loses it, so the window takes Vulkan.
    export LC_ALL=C.UTF-8 WGPU_BACKEND=vulkan WINEDEBUG=-all WINEPREFIX=$folder/wine
    # The comparison with Linux uses Mesa's adapter.
    unset VK_ADD_DRIVER_FILES WAYLAND_DISPLAY
    session=$(mktemp -d)
    export WINE_SESSION=$session XDG_RUNTIME_DIR=$session/runtime
    mkdir -m 700 "$XDG_RUNTIME_DIR"
    # Without -noreset the server resets after its last window closes, and refuses the next one meanwhile.
    exec 3< <(exec Xvfb -displayfd 1 -screen 0 1360x860x24 -noreset -nolisten tcp 2>/dev/null)
    server=$!
    trap end_wine EXIT
    read -r -t 30 -u 3 display || fail 'Xvfb does not start'
    export DISPLAY=:$display
    set_up_wine
    "$wineserver" --persistent
}

end_wine() {
    "$wineserver" --kill || true
    kill "$server" 2>/dev/null || true
    rm -rf "$session"
}

# wgpt reads its settings from these variables, and compared runs must not see the caller's.
unset_settings() {
    local variable
    for variable in "${!WGPT_@}"; do
        unset "$variable"
    done
}

# run_tests [TEST]
run_tests() {
    local entry skip=()
    for entry in "${not_under_wine[@]}"; do
        skip+=(--skip "${entry%%:*}")
    done
    unset_settings
    start_wine
    windows_cargo test --no-fail-fast --lib --bins --tests "$@" -- "${skip[@]}"
    for entry in "${not_under_wine[@]}"; do
        echo "not run under Wine: $entry"
    done
}

case ${1:-} in
build)
    (($# == 1)) || usage
    build
    ;;
test)
    (($# <= 2)) || usage
    run_tests "${@:2}"
    ;;
train)
    (($# == 2 || $# == 3)) || usage
    [[ -x $2 ]] || fail "no wgpt for Linux at $2"
    [[ -e $exe ]] || fail "no $exe: run \`scripts/windows.sh build\` first"
    need imagemagick xdotool
    unset_settings
    start_wine
    "$here/windows/train.sh" "$wine" "$exe" "$2" "${3:-}"
    ;;
run)
    (($# >= 2)) || usage
    start_wine
    "$wine" "${@:2}"
    ;;
*) usage ;;
esac

#!/usr/bin/env bash
# Builds wgpt for browsers: a folder that any static file server can host.
#
#   web/build.sh [FOLDER]     default: web/dist; an existing folder is replaced
#
# Every file except index.html has a hash of the build in its name, so that caches may keep it forever.
# The Rust target comes from rustup if available. Otherwise Debian's packages are unpacked into the
# target folder, and the standard library is built from source.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-web/dist}
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
triple=wasm32-unknown-unknown
# Limit on the compressed size of all files, which a visitor downloads before the first step.
max_bytes=$((12 * 1000 * 1000))

fail() {
    echo "error: $*" >&2
    exit 1
}

# Downloads Debian's Rust for WebAssembly into the folder $1, once, without installing it.
unpack_debian() {
    local folder=$1 package
    command -v apt-get >/dev/null || fail "this Rust does not support $triple, and apt-get is not available: install Rust with rustup"
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$folder"
        mkdir -p "$folder/packages"
        (
            cd "$folder/packages"
            apt-get download rustc-web libstd-rust-web-1.96 libstd-rust-web-dev rust-web-src \
                libllvm22 lld-22
            for package in *.deb; do
                dpkg -x "$package" ..
            done
        )
        rm -rf "$folder/packages"
        touch "$folder/complete"
    fi
}

# Succeeds if rustup has the target or can add it.
has_target() {
    command -v rustup >/dev/null || return 1
    rustup target list --installed | grep -qx "$triple" || rustup target add "$triple"
}

cargo_flags=()
if ! has_target; then
    debian=$target/debian-rust-web
    unpack_debian "$debian"
    export RUSTC=$debian/usr/bin/rustc RUSTC_BOOTSTRAP=1
    export LD_LIBRARY_PATH=$debian/usr/lib/x86_64-linux-gnu:$debian/usr/lib/llvm-22/lib
    export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$debian/usr/bin/rust-lld
    cargo_flags+=(-Zbuild-std=std,panic_abort)
fi

# This is built for the host with the host's compiler, whatever compiler builds the page.
env -u RUSTC -u RUSTC_BOOTSTRAP -u LD_LIBRARY_PATH CARGO_TARGET_DIR="$target/bindgen" \
    cargo build --locked --release --manifest-path web/bindgen/Cargo.toml

# The crate type cdylib makes a WebAssembly module; no other target needs it. The module's constructors
# are exported so that module.js calls them once. Without the export, the linker inserts a call of all
# constructors into every function that JavaScript calls.
CARGO_TARGET_DIR=$target cargo rustc --locked --release "${cargo_flags[@]}" --target "$triple" \
    --no-default-features --features web --lib --crate-type cdylib \
    -- -C link-arg=--export=__wasm_call_ctors

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$target/bindgen/release/bindgen" "$target/$triple/release/wgpt.wasm" "$work/bound" wgpt
mkdir "$work/files"
mv "$work/bound/wgpt.js" "$work/files/"
if command -v wasm-opt >/dev/null; then
    wasm-opt --all-features -O2 "$work/bound/wgpt_bg.wasm" -o "$work/files/wgpt.wasm"
else
    mv "$work/bound/wgpt_bg.wasm" "$work/files/wgpt.wasm"
fi
cp web/*.js web/*.css web/*.svg web/*.html "$work/files/" 2>/dev/null || true
[[ -e $work/files/index.html ]] || fail 'web/index.html is missing'

# One version for all files, because they refer to each other by name.
version=$(cd "$work/files" && cat -- * | sha256sum | cut -c1-12)
renames=()
for file in "$work"/files/*; do
    name=${file##*/}
    [[ $name == index.html ]] && continue
    renames+=(-e "s|\./${name//./\\.}|./${name%.*}-$version.${name##*.}|g")
done
rm -rf "$out"
mkdir -p "$out"
for file in "$work"/files/*; do
    name=${file##*/}
    case $name in
    index.html) sed "${renames[@]}" "$file" >"$out/$name" ;;
    *.js | *.css) sed "${renames[@]}" "$file" >"$out/${name%.*}-$version.${name##*.}" ;;
    *) cp "$file" "$out/${name%.*}-$version.${name##*.}" ;;
    esac
done

echo "$out, version $version"
printf '%12s %12s %12s\n' bytes gzip brotli
all_gzip=0
for file in "$out"/*; do
    gzip=$(gzip -9 -c "$file" | wc -c)
    brotli=-
    if command -v brotli >/dev/null; then
        brotli=$(brotli -q 9 -c "$file" | wc -c)
    fi
    all_gzip=$((all_gzip + gzip))
    printf '%12d %12d %12s  %s\n' "$(wc -c <"$file")" "$gzip" "$brotli" "${file##*/}"
done
((all_gzip <= max_bytes)) || fail "the page is $all_gzip bytes compressed, more than $max_bytes"

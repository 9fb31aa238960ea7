#!/usr/bin/env bash
# Packs built programs for a release, on Debian or Ubuntu. This includes programs for other systems.
#
#   scripts/package.sh manual PROGRAM                     its manual pages and completions, first of all
#   scripts/package.sh archive TARGET PROGRAM [VARIANT]   a tar.xz, for Windows a zip; VARIANT: cuda
#   scripts/package.sh deb PROGRAM                        the Debian package
#   scripts/package.sh installer PROGRAM                  the installer for Windows
#   scripts/package.sh page FOLDER                        the browser page as a zip, from web/build.sh
#   scripts/package.sh sbom                               the crates with their licences, for CycloneDX
#   scripts/package.sh sums                               SHA256SUMS of all of these
#   scripts/package.sh stores                             the pages of winget, Homebrew and the AUR, last of all
#
# Packages go to $OUT, by default target/packages. DLLs and files LICENSE-* in the folder of a program
# are packed with it. Needs the Debian packages xz-utils, zip, librsvg2-bin, imagemagick, nsis and
# dpkg-dev, and cargo-deb and cargo-cyclonedx from cargo. The same sources and programs give the same
# archives. The address of the repository is $REPOSITORY, by default Cargo.toml's.
set -euo pipefail
cd "$(dirname "$0")/.."

windows=x86_64-pc-windows-msvc
linux=x86_64-unknown-linux-gnu
stage=target/stage
manual=target/stage-manual
out=${OUT:-target/packages}
mkdir -p "$out"
out=$(realpath "$out")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
maintainer=$(sed -n 's/^maintainer = "\(.*\)"/\1/p' Cargo.toml)
# Empty until the owner is known.
repository=${REPOSITORY:-$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)}
owner=$(sed -n 's|^https://[^/]*/\([^/]*\)/[^/]*$|\1|p' <<<"$repository")
# The time of files in archives: the commit's time or, in a tree without git, the changelog's.
epoch=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)

fail() {
    echo "error: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

usage() {
    sed -n 's/^# \{0,1\}//; 4,11p' "$0" >&2
    exit 2
}

need() {
    command -v "$1" >/dev/null || fail "$1 is not installed" "${2:-apt-get install $1}"
}

# Writes the manual pages and the completions of a program that runs here.
write_manual() {
    local program=$1
    rm -rf "$manual"
    mkdir -p "$manual"/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
    "$program" man "$manual/man/man1"
    "$program" completions bash >"$manual/bash-completion/completions/wgpt"
    "$program" completions zsh >"$manual/zsh/site-functions/_wgpt"
    "$program" completions fish >"$manual/fish/vendor_completions.d/wgpt.fish"
}

# Fills $stage with the files of every package.
begin_stage() {
    local program=$1 target=$2 variant=${3:-} features=()
    [[ -f $program ]] || fail "$program does not exist" 'build it: cargo build --profile dist'
    # These are the features that release.yml builds with.
    case $target:$variant in
    *:cuda) features=(gui wgpu cuda) ;;
    *windows*:) features=(gui wgpu static-dxc) ;;
    esac
    rm -rf "$stage"
    mkdir -p "$stage"
    cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$stage/"
    scripts/licences.py "$target" "${features[@]}" >"$stage/THIRD-PARTY.txt"
}

# Draws the icon as a PNG of SIZE pixels.
draw_icon() {
    need rsvg-convert 'apt-get install librsvg2-bin'
    rsvg-convert --width "$1" --height "$1" web/icon.svg --output "$2"
}

# Adds the manual, the icons and the entry in the menu of a Linux desktop.
stage_desktop() {
    local share=$stage/share size
    [[ -d $manual ]] || fail 'the manual pages are missing' 'run scripts/package.sh manual PROGRAM first'
    mkdir -p "$share"/{applications,metainfo,icons/hicolor/scalable/apps}
    cp -r "$manual"/. "$share/"
    cp assets/linux/wgpt.desktop "$share/applications/"
    write_metainfo >"$share/metainfo/wgpt.metainfo.xml"
    cp web/icon.svg "$share/icons/hicolor/scalable/apps/wgpt.svg"
    for size in 48 128 256; do
        mkdir -p "$share/icons/hicolor/${size}x$size/apps"
        draw_icon "$size" "$share/icons/hicolor/${size}x$size/apps/wgpt.png"
    done
}

# Fills in the addresses, if the owner is known.
write_metainfo() {
    local id
    id=$(tr '[:upper:]' '[:lower:]' <<<"io.github.${owner:-owner}")
    sed "s|https://github.com/OWNER/wgpt|${repository:-&}|; s|/HEAD/|/v$version/|; s|io\.github\.owner|$id|" \
        assets/linux/wgpt.metainfo.xml
}

# Adds the program, as the file NAME, and the DLLs and licences in its folder.
stage_program() {
    local program=$1 name=$2 file
    install -m 755 "$program" "$stage/$name"
    for file in "$(dirname "$program")"/{*.dll,LICENSE-*}; do
        [[ ! -e $file ]] || cp "$file" "$stage/"
    done
}

archive() {
    local target=$1 program=$2 variant=${3:-}
    local name=wgpt-$version-$target${variant:+-$variant}
    begin_stage "$program" "$target" "$variant"
    case $target in
    *windows*) stage_program "$program" wgpt.exe ;;
    *linux*)
        stage_program "$program" wgpt
        stage_desktop
        ;;
    *)
        stage_program "$program" wgpt
        [[ ! -d $manual ]] || cp -r "$manual" "$stage/share"
        ;;
    esac
    find "$stage" -exec touch --no-dereference --date="@$epoch" {} +
    rm -rf "target/$name"
    mv "$stage" "target/$name"
    if [[ $target == *windows* ]]; then
        need zip
        rm -f "$out/$name.zip"
        (cd target && find "$name" | LC_ALL=C sort | TZ=UTC zip -q -X -9 -@ "$out/$name.zip")
    else
        need xz 'apt-get install xz-utils'
        tar --create --directory=target --sort=name --owner=0 --group=0 --numeric-owner --format=ustar \
            --mtime="@$epoch" "$name" | xz -9 >"$out/$name.tar.xz"
    fi
    rm -rf "target/$name"
}

# cargo-deb takes the files of [package.metadata.deb] in Cargo.toml.
deb() {
    local program=$1
    need cargo-deb 'cargo install --locked cargo-deb'
    begin_stage "$program" "$linux"
    stage_desktop
    install -m 755 "$program" "$stage/wgpt"
    local share=$stage/share
    mkdir -p "$share/doc/wgpt" "$share/zsh/vendor-completions"
    mv "$share/zsh/site-functions/_wgpt" "$share/zsh/vendor-completions/"
    rmdir "$share/zsh/site-functions"
    # Debian's name for CHANGELOG.md, next to the changelog of the package.
    gzip -9 --no-name --stdout CHANGELOG.md >"$share/doc/wgpt/changelog.gz"
    gzip -9 --no-name --stdout "$stage/THIRD-PARTY.txt" >"$share/doc/wgpt/THIRD-PARTY.txt.gz"
    cp README.md "$share/doc/wgpt/"
    write_debian_changelog >"$stage/changelog"
    SOURCE_DATE_EPOCH=$epoch cargo deb --no-build --no-strip --output "$out"
}

write_debian_changelog() {
    printf 'wgpt (%s-1) stable; urgency=medium\n\n' "$version"
    printf '  * Release %s: see changelog.gz.\n\n' "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date --utc --date="@$epoch" -R)"
}

installer() {
    local program=$1 file
    need makensis 'apt-get install nsis'
    need convert 'apt-get install imagemagick'
    begin_stage "$program" "$windows"
    stage_program "$program" wgpt.exe
    # The picture of the last page: the icon on its own blue.
    draw_icon 128 target/icon.png
    convert -size 164x314 'xc:#235fbe' target/icon.png -gravity center -composite BMP3:target/side.bmp
    # The uninstaller deletes only the files in this list, because the folder may have files of the
    # user.
    : >target/files.nsh
    for file in "$stage"/*; do
        printf '!insertmacro FILE "%s"\n' "${file##*/}" >>target/files.nsh
    done
    makensis -V2 -INPUTCHARSET UTF8 -DVERSION="$version" -DSTAGE="$(realpath "$stage")" \
        -DFILES="$(realpath target/files.nsh)" -DICON="$(realpath assets/windows/wgpt.ico)" \
        -DPICTURE="$(realpath target/side.bmp)" -DOUTFILE="$out/wgpt-$version-$windows-setup.exe" assets/windows/installer.nsi
    rm -f target/files.nsh target/icon.png target/side.bmp
}

page() {
    local folder=$1 name=wgpt-$version-page
    [[ -f $folder/index.html ]] || fail "$folder has no index.html" 'build the page with web/build.sh FOLDER'
    need zip
    rm -rf "target/$name" "$out/$name.zip"
    cp -r "$folder" "target/$name"
    cp LICENSE-MIT LICENSE-APACHE "target/$name/"
    scripts/licences.py wasm32-unknown-unknown web >"target/$name/THIRD-PARTY.txt"
    find "target/$name" -exec touch --date="@$epoch" {} +
    (cd target && find "$name" | LC_ALL=C sort | TZ=UTC zip -q -X -9 -@ "$out/$name.zip")
    rm -rf "target/$name"
}

sbom() {
    need cargo-cyclonedx 'cargo install --locked cargo-cyclonedx'
    local name=wgpt-$version.cdx
    cargo cyclonedx --format json --spec-version 1.5 --all-features --target all --override-filename "$name"
    mv "$name.json" "$out/"
}

sums() {
    cd "$out"
    # The pages of the stores have the old sums.
    rm -rf SHA256SUMS stores
    local files=(*)
    [[ -e ${files[0]} ]] || fail "$out has no packages" 'pack them first'
    sha256sum -- "${files[@]}" >SHA256SUMS.new
    mv SHA256SUMS.new SHA256SUMS
}

# Fills the templates in assets/stores.
stores() {
    local script winget sum name
    [[ -n $owner ]] || fail 'the address of the repository is unknown' \
        'add repository = "https://github.com/OWNER/wgpt" to Cargo.toml, or set REPOSITORY to try it'
    [[ -f $out/SHA256SUMS ]] || fail "$out has no SHA256SUMS" 'run scripts/package.sh sums first'
    script="s|@VERSION@|$version|g; s|@REPOSITORY@|$repository|g; s|@OWNER@|$owner|g; s|@MAINTAINER@|$maintainer|g"
    while read -r sum name; do
        script+="; s|@SHA256 $name@|$sum|g"
    done <"$out/SHA256SUMS"
    rm -rf "$out/stores"
    winget=winget/manifests/$(tr '[:upper:]' '[:lower:]' <<<"${owner:0:1}")/$owner/wgpt/$version/$owner.wgpt
    fill winget/version.yaml "$winget.yaml"
    fill winget/installer.yaml "$winget.installer.yaml"
    fill winget/locale.en-US.yaml "$winget.locale.en-US.yaml"
    fill homebrew/wgpt.rb homebrew/Formula/wgpt.rb
    fill aur/PKGBUILD aur/wgpt-bin/PKGBUILD
    fill aur/SRCINFO aur/wgpt-bin/.SRCINFO
    ! grep -rn '@SHA256' "$out/stores" >&2 ||
        fail 'SHA256SUMS does not have these packages' 'pack them, then run scripts/package.sh sums again'
}

fill() {
    mkdir -p "$(dirname "$out/stores/$2")"
    sed "$script" "assets/stores/$1" >"$out/stores/$2"
}

(($# > 0)) || usage
command=$1
shift
case $command:$# in
manual:1) write_manual "$(realpath "$1")" ;;
archive:2 | archive:3) archive "$@" ;;
deb:1 | installer:1 | page:1) "$command" "$1" ;;
sbom:0 | sums:0 | stores:0) "$command" ;;
*) usage ;;
esac

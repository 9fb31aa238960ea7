#!/usr/bin/env bash
# Unpacks a newer software Vulkan next to the system's: the lavapipe of Debian 13's backports, the first
# Mesa in a stable Debian with cooperative matrices. The tests of those kernels run on it:
#
#   scripts/lavapipe.sh FOLDER
#   export VK_DRIVER_FILES=FOLDER/icd.json LP_NATIVE_VECTOR_WIDTH=256
#
# Needs x86-64 and apt, on Debian 12 or newer. It installs nothing: it downloads packages, with the keys
# that the system trusts, unpacks their libraries into FOLDER, and prints the two variables.
set -euo pipefail
cd "$(dirname "$0")"

if (($# != 1)); then
    echo 'usage: scripts/lavapipe.sh FOLDER' >&2
    exit 2
fi
mkdir -p "$1"
folder=$(realpath "$1")

suite=trixie-backports
driver=libvulkan_lvp.so
# These must come from the machine that runs the driver, because the loader refuses a second copy in one
# process.
system_libraries='^(libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so'

# Prints the first archive of Debian among apt's own sources.
mirror() {
    local found
    found=$(apt-get indextargets --format '$(SITE) $(REPO_URI)' 'Created-By: Packages' |
        awk '$2 ~ /\/debian\/?$/ { print $2; exit }')
    if [[ -z $found ]]; then
        echo 'error: no archive of Debian among the sources of apt' >&2
        echo '  hint: add one to /etc/apt/sources.list and run apt-get update' >&2
        return 1
    fi
    echo "$found"
}

# Downloads the driver's package and its dependencies. This apt has a separate state, in which nothing
# is installed yet.
download() {
    local state=$1 archive line
    archive=$(mirror)
    mkdir -p "$state"/{lists,archives}/partial
    : >"$state/status"
    for line in trixie "$suite"; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $line main"
    done >"$state/sources.list"
    cat >"$state/apt.conf" <<CONF
Dir::Etc::SourceList "$state/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$state/lists";
Dir::State::Status "$state/status";
Dir::Cache "$state";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
CONF
    APT_CONFIG=$state/apt.conf apt-get -qq update
    APT_CONFIG=$state/apt.conf apt-get -qq -y --download-only -t "$suite" install mesa-vulkan-drivers \
        >/dev/null
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# apt reads the lists as another user.
chmod 755 "$work"
download "$work/apt"
for package in "$work"/apt/archives/*.deb; do
    dpkg-deb --extract "$package" "$work/root"
done

rm -rf "$folder/lib"
mkdir "$folder/lib"
find "$work/root/usr/lib/x86_64-linux-gnu" -maxdepth 1 -name '*.so*' -print0 |
    while IFS= read -r -d '' library; do
        name=$(basename "$library")
        [[ $name =~ $system_libraries ]] || cp --dereference "$library" "$folder/lib/$name"
    done

# Debian 13's libraries ask for the glibc that they were built with. An older glibc lacks only the few
# functions in glibc.c, so weaken.c drops the demand, and glibc.c provides the functions.
cc -O2 -o "$work/weaken" lavapipe/weaken.c
"$work/weaken" "$folder"/lib/*.so*
cc -O2 -shared -fPIC -fno-builtin -o "$folder/lib/libwgpt_lavapipe.so" lavapipe/glibc.c \
    -L"$folder/lib" -Wl,--no-as-needed -l:"$driver" -ldl -Wl,--allow-shlib-undefined \
    -Wl,--disable-new-dtags,-rpath,'$ORIGIN'

cat >"$folder/icd.json" <<JSON
{
    "file_format_version": "1.0.0",
    "ICD": { "library_path": "$folder/lib/libwgpt_lavapipe.so", "api_version": "1.4.0" }
}
JSON

echo "VK_DRIVER_FILES=$folder/icd.json"
# Without this, the driver uses the CPU's widest vectors, and its matrices crash with them.
echo 'LP_NATIVE_VECTOR_WIDTH=256'

# Unpacks drivers of Mesa next to the system's, for scripts/lavapipe.sh and scripts/gpu-compilers.sh. They
# source this file.
#
# Needs x86-64, apt and a C compiler, on Debian 12 or newer. Nothing is installed: packages are downloaded,
# with the keys that the system trusts, and their files unpacked.

mesa_sources=$(dirname "$(realpath "${BASH_SOURCE[0]}")")

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

# unpack_packages RELEASE FOLDER PACKAGE...: unpacks packages of a release's backports, or of the release
# where it has none, with their dependencies, into FOLDER. This apt has a separate state, in which nothing
# is installed yet.
unpack_packages() {
    local release=$1 folder=$2 state archive line package
    shift 2
    state=$(mktemp -d)
    # apt reads the lists as another user.
    chmod 755 "$state"
    archive=$(mirror)
    mkdir -p "$state"/{lists,archives}/partial "$folder"
    : >"$state/status"
    for line in "$release" "$release-backports"; do
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
    APT_CONFIG=$state/apt.conf apt-get -qq -y --download-only -t "$release-backports" install "$@" \
        >/dev/null
    for package in "$state"/archives/*.deb; do
        dpkg-deb --extract "$package" "$folder"
    done
    rm -rf "$state"
}

# copy_libraries ROOT FOLDER: copies the libraries of unpacked packages, and makes them accept this
# machine's glibc. An older glibc lacks only the few functions in glibc.c, so weaken.c drops the demand
# for a newer one, and link_driver provides the functions.
copy_libraries() {
    local root=$1 folder=$2 library name
    rm -rf "$folder"
    mkdir -p "$folder"
    # Older packages have some of their libraries in /lib.
    for library in "$root"/{usr/,}lib/x86_64-linux-gnu/*.so*; do
        name=$(basename "$library")
        [[ ! -f $library || $name =~ $system_libraries ]] || cp --dereference "$library" "$folder/$name"
    done
    cc -O2 -o "$root/weaken" "$mesa_sources/weaken.c"
    "$root/weaken" "$folder"/*.so*
}

# link_driver LIBRARY DRIVER ARGUMENTS...: makes a library that is DRIVER, a file next to it, with
# glibc.c and the sources among the arguments of the C compiler in front.
link_driver() {
    local library=$1 driver=$2
    shift 2
    cc -O2 -shared -fPIC -fno-builtin -o "$library" "$mesa_sources/glibc.c" "$@" \
        -L"$(dirname "$library")" -Wl,--no-as-needed -l:"$driver" -ldl \
        -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags,-rpath,'$ORIGIN'
}

# write_manifest FILE LIBRARY: writes the file that VK_DRIVER_FILES names. LIBRARY is relative to it, so that
# the folder can be moved.
write_manifest() {
    cat >"$1" <<JSON
{
    "file_format_version": "1.0.0",
    "ICD": { "library_path": "$2", "api_version": "1.4.0" }
}
JSON
}

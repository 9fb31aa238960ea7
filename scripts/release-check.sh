#!/usr/bin/env bash
# Checks that the sources are ready for the release of a tag. This is the first job of a release.
#
#   scripts/release-check.sh TAG REPOSITORY
#
# REPOSITORY is its address, as in Cargo.toml. Prints everything that is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

if (($# != 2)); then
    echo 'usage: scripts/release-check.sh TAG REPOSITORY' >&2
    exit 2
fi
tag=$1 repository=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
missing=0

missing() {
    echo "error: $1" >&2
    missing=1
}

[[ $tag == "v$version" ]] || missing "the tag is $tag, but Cargo.toml has version $version"
grep -A 1 -Fx 'name = "wgpt"' Cargo.lock | grep -Fqx "version = \"$version\"" ||
    missing "Cargo.lock has another version of wgpt: cargo update --workspace"
scripts/changelog.sh "$version" >/dev/null || missing=1
grep -Eq "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    missing "CHANGELOG.md has no date for $version"
grep -Fq "<release version=\"$version\"" assets/linux/wgpt.metainfo.xml ||
    missing "assets/linux/wgpt.metainfo.xml has no release $version"
grep -Fqx "repository = \"$repository\"" Cargo.toml ||
    missing "Cargo.toml has no line: repository = \"$repository\""
# Placeholders for addresses that only the owner of the repository knows.
if grep -n 'invalid\.wgpt\|wgpt\.invalid' Cargo.toml assets/linux/wgpt.metainfo.xml >&2; then
    missing 'these lines have placeholders'
fi
if ((missing)); then
    echo '  hint: docs/releasing.md says what a release needs' >&2
fi
exit "$missing"

#!/usr/bin/env bash
# Prints the section of a version from CHANGELOG.md, without its heading, as the text of a release.
#
#   scripts/changelog.sh VERSION [FILE]
set -euo pipefail

if (($# < 1 || $# > 2)); then
    echo 'usage: scripts/changelog.sh VERSION [FILE]' >&2
    exit 2
fi
version=$1
file=${2:-$(dirname "$0")/../CHANGELOG.md}

# Headings are `## [0.2.0] - 2026-11-23`. Links to versions may follow the last section.
section=$(awk -v heading="## [$version]" '
    /^## / || /^\[[^]]*\]: / { inside = 0 }
    inside
    index($0, heading) == 1 { inside = 1 }
' "$file")
# This removes the empty lines before it. The command substitution has removed the ones after it.
section=$(sed '/./,$!d' <<<"$section")
if [[ -z $section ]]; then
    echo "error: $file has no section for $version" >&2
    echo "  hint: it begins with \`## [$version] - DATE\`; docs/releasing.md says how a release is made" >&2
    exit 1
fi
printf '%s\n' "$section"

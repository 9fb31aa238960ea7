#!/usr/bin/env python3
"""Prints the licences of all crates that a program of wgpt contains, for its packages.

    scripts/licences.py TARGET [FEATURE ...] > THIRD-PARTY.txt

TARGET is a target triple. Without FEATURE, the default features count. Each text is printed once, after
the crates that it came with. cargo-about does the same, but needs a template, a list of accepted
licences (which deny.toml is here) and an online service. This script needs only cargo.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# Names of files with licences, including the licences of C sources and fonts within a crate.
LICENCE = re.compile(r"(^|[-_. ])(un)?(licen[cs]e|copying|notice|copyright|ofl|ufl)", re.IGNORECASE)
SUFFIXES = {"", ".txt", ".md", ".mit", ".apache", ".apache2", ".apache-2.0", ".bsd", ".zlib", ".boost"}
FONTS = {".ttf", ".otf"}


def cargo(command, features, *options):
    arguments = ["cargo", command, "--locked", *options]
    if features:
        arguments += ["--no-default-features", "--features", ",".join(features)]
    return subprocess.check_output(arguments, text=True)


def packages(target, features):
    """Returns the packages that are linked into wgpt, by name."""
    tree = ["--edges=normal", "--prefix=none", "--format={p}", f"--target={target}"]
    lines = cargo("tree", features, *tree).splitlines()[1:]
    linked = {tuple(line.split()[:2]) for line in lines}
    metadata = cargo("metadata", features, "--format-version=1")
    known = json.loads(metadata)["packages"]
    found = [package for package in known if (package["name"], f"v{package['version']}") in linked]
    return sorted(found, key=lambda package: package["name"])


def is_licence(path):
    """Recognises a licence by its name. Next to a font, any text counts as one."""
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        return False
    beside_font = path.suffix == ".txt" and any(
        other.suffix in FONTS for other in path.parent.iterdir()
    )
    return beside_font or LICENCE.search(path.name) is not None


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    texts, without = {}, []
    for package in packages(sys.argv[1], sys.argv[2:]):
        folder = Path(package["manifest_path"]).parent
        label = f"{package['name']} {package['version']} ({package['license'] or 'see its file'})"
        files = sorted(path for path in folder.rglob("*") if is_licence(path))
        if not files:
            without.append(label)
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            # Line breaks differ between copies of the same text.
            text_key = " ".join(text.split())
            crates, _ = texts.setdefault(text_key, ([], text))
            if label not in crates:
                crates.append(label)
    rule = "=" * 80
    print("This program contains the following crates, under their own licences.")
    for crates, text in texts.values():
        print(f"\n{rule}\n" + "\n".join(crates) + f"\n{rule}\n\n{text}")
    if without:
        print(f"\n{rule}\nCrates without a file of their licence, which is named in brackets\n{rule}\n")
        print("\n".join(without))


main()

"""A watch on folders: what has changed between two moments."""

import hashlib
import os
import stat

# Larger files are compared by size and time alone.
HASHED = 1 << 20


def tree(folder, hashed=False):
    """Returns what each path below a folder is: its kind, and the size and the time of a file."""
    found = {}
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            entries = list(os.scandir(os.path.join(folder, below)))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = os.path.join(below, entry.name)
            try:
                found[path] = describe(entry, hashed)
            except FileNotFoundError:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(path)
    return found


def describe(entry, hashed):
    status = entry.stat(follow_symlinks=False)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        # The times of a folder change with its entries, which are listed themselves.
        return (kind,)
    if kind == stat.S_IFLNK:
        return (kind, os.readlink(entry.path))
    if hashed and kind == stat.S_IFREG and status.st_size <= HASHED:
        with open(entry.path, "rb") as file:
            return (kind, status.st_size, status.st_mtime_ns, hashlib.sha256(file.read()).digest())
    return (kind, status.st_size, status.st_mtime_ns)


def changes(before, after):
    """Returns the paths that were added, removed or changed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))

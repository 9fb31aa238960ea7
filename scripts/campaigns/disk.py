"""A disk that loses power: a recording of what a program does to a folder, and what may be left of it.

`record` lists the calls that change files below a folder, with the bytes that they write, and those that sync.
`Disk` repeats a part of the list and draws one of the states that the folder may have after a power cut there.

The model is that of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014), which measured
what file systems leave of programs' calls:

- A file has the content of its last fsync. Of the writes after it, the disk has none, all, those up to some sector
  of 512 bytes, or any of their sectors. The others may have left zeros where the file has grown, because ext4 and
  XFS allocate late.
- A change of names (mkdir, creat, rename, unlink) is on the disk after an fsync of its folder. In half of the cuts
  the disk has any subset of the changes after that, because POSIX promises no more, and btrfs no order. In the other
  half it has them in their order up to some change, and each fsync of any file or folder writes all of them, as the
  journals of ext4 and XFS do.
- Names and content are independent: the disk may have a rename without the bytes of the renamed file.
- A rename changes both of its names or none.
"""

import os
import pathlib
import re
import subprocess

SECTOR = 512

# The calls that change files, or the position of the next write.
CALLS = ("open openat lseek write pwrite64 writev truncate ftruncate rename renameat renameat2 unlink unlinkat mkdir "
         "mkdirat rmdir fsync fdatasync syncfs sync").split()

# Other calls that can change files. The program makes none of them there, so there is no model of them.
OTHERS = ("creat openat2 link linkat symlink symlinkat pwritev pwritev2 fallocate copy_file_range sendfile splice "
          "mmap").split()

CALL = re.compile(r"(\d+\.\d+) (\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>)?")
DESCRIPTOR = re.compile(r"(-?\d+|AT_FDCWD)<([^>]*)>")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class NotModelled(Exception):
    """The program made a call that the model does not have."""


def text_of(escaped):
    """Decodes what strace -xx escapes."""
    return os.fsdecode(bytes_of(escaped)) if escaped.startswith("\\x") else escaped


def bytes_of(escaped):
    return bytes.fromhex(escaped.replace("\\x", ""))


def record(campaign, root, *args):
    """Runs a command. Returns its exit code, its output, and the events of all its threads on files below `root`:
    tuples of a kind, a path relative to `root`, and more."""
    log = campaign.folder / "strace"
    log.mkdir()
    trace = ["strace", "-ff", "-o", str(log / "thread"), "-y", "-xx", "-s", str(1 << 24), "--seccomp-bpf",
             "-e", "trace=" + ",".join(f"?{call}" for call in CALLS + OTHERS), "-e", "signal=none",
             "--absolute-timestamps=format:unix,precision:ns"]
    process = subprocess.run([*trace, campaign.program, *map(str, args)], cwd=campaign.folder, env=campaign.env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    calls = []
    for file in log.iterdir():
        calls += [found.groups() for found in map(CALL.match, file.read_text().splitlines()) if found]
        file.unlink()
    log.rmdir()
    # Times as text have the same length.
    calls.sort(key=lambda call: call[0])
    reader = Reader(root, campaign.folder)
    events = [event for call in calls for event in reader.events(*call[1:])]
    return process.returncode, process.stdout.decode(errors="replace"), events


class Reader:
    """Turns calls, as strace prints them, into events."""

    def __init__(self, root, working_folder):
        self.root = os.path.realpath(root)
        self.working_folder = os.path.realpath(working_folder)

    def below(self, path):
        """Returns the path relative to the root, or None if it is elsewhere."""
        path = os.path.normpath(path)
        if path == self.root:
            return ""
        return path[len(self.root) + 1:] if path.startswith(self.root + "/") else None

    def paths(self, arguments):
        """Returns the paths that a call names, each after the folder that it is relative to, if that is given."""
        folder, found = self.working_folder, []
        for argument in arguments:
            if descriptor := DESCRIPTOR.match(argument):
                folder = text_of(descriptor[2])
            elif string := STRING.match(argument):
                found.append(self.below(os.path.join(folder, text_of(string[1]))))
        return found

    def events(self, name, arguments, result, opened):
        """Returns the event of a call, or nothing if it failed or was about other files."""
        if result.startswith("-"):
            return []
        descriptor, paths = DESCRIPTOR.match(arguments), self.paths(arguments.split(", "))
        is_open = descriptor is not None and descriptor[1] != "AT_FDCWD"
        own = self.below(text_of(descriptor[2])) if is_open else None
        of_paths = {"mkdir": "make", "mkdirat": "make", "unlink": "remove", "unlinkat": "remove", "rmdir": "remove",
                    "rename": "rename", "renameat": "rename", "renameat2": "rename"}
        if name in OTHERS or "RENAME_EXCHANGE" in arguments:
            self.refuse(name, arguments, paths)
        elif name in ("open", "openat"):
            path, number = self.below(text_of(opened)), int(result)
            if path is not None:
                return [("open", path, number, *(flag in arguments for flag in ("O_CREAT", "O_TRUNC", "O_APPEND")))]
        elif name in of_paths:
            if None not in paths:
                return [(of_paths[name], *paths)]
            if paths != [None] * len(paths):
                raise NotModelled(f"{name} of {paths}")
        elif name == "sync":
            return [("sync all", "")]
        elif name == "truncate" and paths != [None]:
            return [("truncate", *paths, int(arguments.split(", ")[-1]))]
        elif own is not None:
            return [self.event_of_open_file(name, arguments, result, own, int(descriptor[1]))]
        return []

    def event_of_open_file(self, name, arguments, result, path, number):
        last = arguments.split(", ")[-1]
        if name in ("fsync", "fdatasync"):
            return "sync", path
        if name == "syncfs":
            return "sync all", path
        if name == "ftruncate":
            return "truncate", path, int(last)
        if name == "lseek":
            return "seek", path, number, int(result)
        content = b"".join(map(bytes_of, STRING.findall(arguments)))[:int(result)]
        return "write", path, number, content, int(last) if name == "pwrite64" else None

    def refuse(self, name, arguments, paths):
        """Fails if a call that is not modelled changes files below the root."""
        if name == "mmap" and not ("MAP_SHARED" in arguments and "PROT_WRITE" in arguments):
            return
        open_files = [self.below(text_of(found[2])) for found in DESCRIPTOR.finditer(arguments)]
        if any(path is not None for path in paths + open_files):
            raise NotModelled(f"{name} of {paths} {open_files}")


class File:
    def __init__(self, content=b""):
        self.synced = content
        self.content = bytearray(content)
        # Since the last sync: (offset, bytes) of a write, (size, None) of a truncation.
        self.changes = []

    def change(self, offset, written):
        self.changes.append((offset, written))
        apply(self.content, offset, written)

    def sync(self):
        self.synced, self.changes = bytes(self.content), []

    def after_cut(self, random):
        """Returns one of the contents that the file may have after a power cut."""
        if not self.changes:
            return self.synced
        whole, kind = bytes(self.content), random.choice(["none", "all", "first", "size", "sectors"])
        if kind == "all":
            return whole
        if kind == "first":
            content = bytearray(self.synced)
            last = random.randrange(len(self.changes))
            for change in self.changes[:last]:
                apply(content, *change)
            offset, written = self.changes[last]
            if written is not None:
                end = random.randrange(offset, offset + len(written) + 1) // SECTOR * SECTOR
                apply(content, offset, written[:max(0, end - offset)])
            return bytes(content)
        if kind == "none":
            return self.synced
        # The rest of the new size is zeros.
        content = bytearray(self.synced[:len(whole)].ljust(len(whole), b"\0"))
        if kind == "sectors":
            for begin in range(0, len(whole), SECTOR):
                if random.random() < 0.5:
                    content[begin:begin + SECTOR] = whole[begin:begin + SECTOR]
        return bytes(content)


def apply(content, offset, written):
    """Writes bytes into a content, or truncates it."""
    if written is None:
        content[offset:] = b"\0" * max(0, offset - len(content))
    else:
        content.extend(b"\0" * (offset - len(content)))
        content[offset:offset + len(written)] = written


class Folder:
    def __init__(self):
        self.names = {}


class Disk:
    """The files below a folder, from a state that is on the disk."""

    def __init__(self, tree):
        self.root = Folder()
        # Changes of names: the entries (folder, name, node or None) that change, and whether they are on the disk.
        self.changes = []
        # The changes before this one are in the journal.
        self.journal = 0
        # The position of the next write by the number of the open file and the file; None is the end.
        self.positions = {}
        for path, content in sorted(tree.items()):
            self.set_names((path, Folder() if content is None else File(content)))
        self.sync_all()

    def at(self, path):
        node = self.root
        for name in pathlib.PurePath(path).parts:
            node = node.names.get(name) if isinstance(node, Folder) else None
        return node

    def set_names(self, *paths):
        """Lets paths lead to nodes, or to nothing."""
        entries = []
        for path, node in paths:
            folder, name = self.at(os.path.dirname(path)), os.path.basename(path)
            entries.append((folder, name, node))
            put(folder.names, name, node)
        self.changes.append([entries, False])

    def sync_all(self):
        self.journal = len(self.changes)
        for change in self.changes:
            for _, _, node in change[0]:
                if isinstance(node, File):
                    node.sync()
            change[1] = True

    def repeat(self, kind, path, *more):
        """Repeats an event."""
        node = self.at(path)
        if kind == "make":
            self.set_names((path, Folder()))
        elif kind == "remove":
            self.set_names((path, None))
        elif kind == "rename":
            self.set_names((path, None), (more[0], node))
        elif kind == "open":
            number, creates, truncates, appends = more
            if node is None and creates:
                node = File()
                self.set_names((path, node))
            elif truncates and node.content:
                node.change(0, None)
            self.positions[number, node] = None if appends else 0
        elif kind == "seek" and self.positions.get((more[0], node)) is not None:
            self.positions[more[0], node] = more[1]
        elif kind == "write":
            number, written, at = more
            # A file without a name is lost anyway.
            if node is not None:
                position = self.positions[number, node]
                offset = at if at is not None else len(node.content) if position is None else position
                node.change(offset, written)
                if position is not None and at is None:
                    self.positions[number, node] = offset + len(written)
        elif kind == "truncate" and node is not None:
            node.change(more[0], None)
        elif kind == "sync all":
            self.sync_all()
        elif kind == "sync":
            self.sync(node)

    def sync(self, node):
        self.journal = len(self.changes)
        if isinstance(node, File):
            node.sync()
        for change in self.changes:
            change[1] |= any(folder is node for folder, _, _ in change[0])

    def after_cut(self, random):
        """Returns one of the states that the folder may have after a power cut: the contents by their paths, None
        for a folder."""
        if random.random() < 0.5:
            end = random.randint(self.journal, len(self.changes))
            kept = [number < end for number in range(len(self.changes))]
        else:
            share = random.choice([0, 0.5, 0.9, 1])
            kept = [synced or random.random() < share for _, synced in self.changes]
        names = {}
        for (entries, _), is_kept in zip(self.changes, kept):
            for folder, name, node in entries if is_kept else []:
                put(names.setdefault(folder, {}), name, node)
        return tree_of(self.root, lambda folder: names.get(folder, {}), lambda file: file.after_cut(random))

    def tree(self):
        """Returns the state that processes see."""
        return tree_of(self.root, lambda folder: folder.names, lambda file: bytes(file.content))


def tree_of(folder, names_of, content_of, path=""):
    """Returns the contents of the files below a folder by their paths, None for a folder."""
    tree = {}
    for name, node in sorted(names_of(folder).items()):
        if isinstance(node, Folder):
            tree[path + name] = None
            tree |= tree_of(node, names_of, content_of, f"{path}{name}/")
        else:
            tree[path + name] = content_of(node)
    return tree


def put(names, name, node):
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def read_tree(folder):
    """Returns the contents of all files below a folder by their paths, None for a folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in paths}


def write_tree(folder, tree):
    """Writes what `read_tree` returns."""
    folder.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)

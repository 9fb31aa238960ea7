"""Files of other sizes and kinds than a command expects: huge ones, bombs, links, pipes, sockets and devices. Families of
the mutants."""

import functools
import gzip
import os
import shutil
import socket
import stat

from .targets import Command, Target, export, prepare, resume

# A sparse file of this size takes no space.
HUGE = 4 << 30

# `prepare` streams these, however long they are.
STREAMED = ("text", "compressed text", "conversations")

ANSWERS = ["eval", "model", "--hellaswag=questions.jsonl", "--device=cpu", "--results=answers.jsonl"]

KINDS = ["hard link", "link", "link to nothing", "pipe", "socket", "device"]

# What commands write besides the files that they read.
WRITTEN = [
    *((f"run/{name}", resume("run")) for name in ("log.txt", "events.jsonl", "scalars.csv", "commands.jsonl", "lock")),
    *((f"out/{name}", prepare("text.txt")) for name in ("train.bin", "val.bin", "meta.json", "tokenizer.json")),
    ("out/model.safetensors", Command(["export", "run", "-o", "out"], ["out"])),
    ("a.gguf", export("model")),
    ("page.html", Command(["report", "run", "-o", "page.html"], ["page.html"])),
    ("answers.jsonl", Command(ANSWERS, ["answers.jsonl"])),
]


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def encoded(value):
    """Returns a type of Thrift's compact protocol and the bytes of a number, bytes, a list, or a struct: pairs of an id
    and a value."""
    if isinstance(value, int):
        return 5, varint(value << 1)
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, list):
        each = [encoded(item) for item in value]
        return 9, bytes([len(each) << 4 | each[0][0]]) + b"".join(body for _, body in each)
    fields, before = b"", 0
    for id, item in value:
        kind, body = encoded(item)
        fields, before = fields + bytes([id - before << 4 | kind]) + body, id
    return 12, fields + b"\0"


@functools.cache
def parquet_bomb(size):
    """Returns a Parquet file with one text of zeros."""
    text = gzip.compress(size.to_bytes(4, "little") + bytes(size), 1)
    page = encoded(((1, 0), (2, size + 4), (3, len(text)), (5, ((1, 1), (2, 0), (3, 3), (4, 3)))))[1] + text
    chunk = ((1, 6), (2, [0]), (3, [b"text"]), (4, 2), (5, 1), (6, size + 4), (7, len(page)), (9, 4))
    schema = [((4, b"root"), (5, 1)), ((1, 6), (3, 0), (4, b"text"), (6, 0))]
    group = ((1, [((2, 4), (3, chunk))]), (2, len(page)), (3, 1))
    footer = encoded(((1, 1), (2, schema), (3, 1), (4, [group])))[1]
    return b"PAR1" + page + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def enlarge(bench, by_family):
    """Makes a file huge that is read as a whole, or one that stands for much. Returns its target and a word for it."""
    rng, work = bench.campaign.random, bench.campaign.work
    if rng.randrange(6) == 0:
        (work / "texts.parquet").write_bytes(parquet_bomb(rng.choice([300, 500]) << 20))
        return Target("limits", "texts.parquet", [], [prepare("texts.parquet")]), "as a bomb"
    target = rng.choice([target for family, targets in by_family.items() if family not in STREAMED for target in targets])
    path = work / target.path
    content = path.read_bytes()
    path.write_bytes(rng.choice([content, content[:-1], b"", b"{", b"x"]))
    os.truncate(path, HUGE + rng.randrange(1 << 20))
    return target, "huge"


def replace(bench, path):
    """Puts what is no regular file, or another name of a file elsewhere, in place of a file. Returns a word for it."""
    rng, elsewhere = bench.campaign.random, bench.campaign.folder / "elsewhere"
    # Only the administrator may make a device.
    kind = rng.choice(KINDS if os.geteuid() == 0 else KINDS[:-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(elsewhere, ignore_errors=True)
    elsewhere.mkdir()
    if path.exists():
        shutil.move(path, elsewhere / "mine")
    else:
        (elsewhere / "mine").write_text("mine\n" * 50)
    if kind == "hard link":
        os.link(elsewhere / "mine", path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, rng.choice([3, 5, 7])))
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    else:
        path.symlink_to(elsewhere / ("mine" if kind == "link" else "new"))
    return f"as a {kind}"


def link(bench, hub, by_family):
    """Replaces a file that a command reads or writes. Returns its target and a word for it."""
    rng = bench.campaign.random
    kind = rng.randrange(5)
    if kind < 2:
        target = rng.choice([target for targets in by_family.values() for target in targets])
    elif kind < 4:
        path, command = rng.choice(WRITTEN)
        target = Target("links", path, [], [command])
    else:
        hub.serve_file("/x.txt", b"Once upon a time.\n" * 50)
        name = rng.choice([".x.txt.incomplete", ".x.txt.version", "x.txt"])
        target = Target("links", f"data/{name}", [], [Command(["get", f"{hub.address}/x.txt"], ["data"])])
    return target, replace(bench, bench.campaign.work / target.path)

"""Damages files that wgpt reads, and reads them."""

import json
import os
import pathlib
import resource
import shutil
import sys

from . import damage, odd_files, watch
from .campaign import CACHE, CODES
from .hub import COMMIT, Answer, Hub, listing
from .targets import Command, make_files, prepare, sample, targets

# The memory that a command may take, in bytes. The files that it reads are small.
MEMORY = 4 << 30

# The same where a file is huge.
LITTLE_MEMORY = 1 << 30

# The time that a command may take. A whole file takes less than a second.
SECONDS = 120


def mutate(campaign, target):
    """Damages the file of a target, or removes it. Returns a word for it."""
    path = campaign.work / target.path
    if campaign.random.randrange(100) == 0:
        path.unlink()
        return "without the file"
    path.write_bytes(campaign.random.choice(target.damages)(campaign.random, path.read_bytes()))
    return "damaged"


def judge(command, ended):
    """Returns what is wrong with the end of a command, or None."""
    if ended.code is None:
        return f"did not end in {SECONDS} s"
    if ended.code not in CODES or "this is a bug in wgpt" in ended.err:
        return "is not a code for a bad file"
    if ended.code == 1 and "memory" in ended.err:
        return f"wanted more than {resource.getrlimit(resource.RLIMIT_AS)[0] >> 30} GiB"
    if ended.code and not ("error: " in ended.err and "hint: " in ended.err):
        return "refused it without an error and a hint"
    if command.args == ["runs", "."] and not (ended.code == 0 and "letters-run" in ended.out and "llama-run" in ended.out):
        return "did not list the other runs"
    # Generated text has what the model has drawn.
    shown = ended.err if command.args[0] in ("sample", "chat") else ended.out + ended.err
    if any(ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 for c in shown):
        return "printed control characters"
    return None


def left_out(folder, names):
    """Returns the entries that a copy of a finding leaves out: what is huge, or no file."""
    paths = [pathlib.Path(folder, name) for name in names]
    return [path.name for path in paths if not path.is_dir() and not (path.is_file() and path.stat().st_size < 1 << 30)]


class Bench:
    """Runs commands on damaged files, compares all files before and after, and makes them whole again."""

    def __init__(self, campaign):
        self.campaign = campaign
        self.original = campaign.folder / "original"
        shutil.copytree(campaign.work, self.original, symlinks=True)
        self.whole = watch.tree(campaign.folder)
        self.counts = {}
        self.number = 0

    def count(self, family, accepted):
        mutants = self.counts.setdefault(family, [0, 0, 0])
        mutants[0] += 1
        mutants[1 if accepted else 2] += 1

    def run(self, command, what, env=None):
        """Runs a command and finds what is wrong with its end, and what it has changed besides its output."""
        campaign = self.campaign
        before = watch.tree(campaign.folder)
        ended = campaign.run(*command.args, seconds=SECONDS, stdin=command.stdin, env=env)
        allowed = [CACHE, *(f"work/{path}" for path in command.writes)]
        changed = [path for path in watch.changes(before, watch.tree(campaign.folder))
                   if not any(path == write or path.startswith(f"{write}/") for write in allowed)]
        wrong = judge(command, ended)
        if changed:
            wrong = f"changed {', '.join(changed[:5])}"
        if wrong:
            kept = self.keep()
            shown = " ".join(command.args)
            campaign.finding(f"mutant {self.number}, {what}, kept in {kept}: `{shown}` {wrong}: {ended}")
        return ended

    def keep(self):
        """Copies the working folder, as it is for a finding. Returns the copy."""
        kept = self.campaign.folder / f"mutant-{self.number}"
        if not kept.exists():
            shutil.copytree(self.campaign.work, kept, symlinks=True, ignore=left_out)
            self.campaign.asked.add(kept.name)
            # It is no output of a command.
            now = watch.tree(self.campaign.folder)
            self.whole.update({path: entry for path, entry in now.items() if path.split("/")[0] == kept.name})
        return kept

    def restore(self):
        """Makes all files whole."""
        for path in watch.changes(self.whole, watch.tree(self.campaign.folder)):
            if path == CACHE or not path.startswith(("work/", "tmp/", f"{CACHE}/huggingface")):
                continue
            at = self.campaign.folder / path
            if at.is_dir() and not at.is_symlink():
                if path not in self.whole:
                    shutil.rmtree(at)
                continue
            at.unlink(missing_ok=True)
            if path in self.whole:
                at.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.original / path.removeprefix("work/"), at)


def damage_file(bench, family, target, how):
    """Runs the commands that read a damaged file."""
    codes = [bench.run(command, f"{target.path} {how}").code for command in target.commands]
    bench.count(family, all(code == 0 for code in codes))


def limit_memory(size):
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


EVIL_NAMES = ["../../../../../home/.profile", "/tmp/x", "a/../../../x", "config.json/", "config.json\0", "x" * 5000, ".git/config",
              "CON", "", "a\\..\\b", "model.safetensors/../config.json", "\x1b[2J", "wgpt/../../x", "..", "."]


def lie(rng, files, name):
    """Returns a list of files in which one is not as it is served."""
    told = listing(name, files)
    file = rng.choice(told["siblings"])
    kind = rng.randrange(6)
    if kind == 0:
        file["rfilename"] = rng.choice(EVIL_NAMES)
    elif kind == 1:
        file["size"] = file.setdefault("lfs", {})["size"] = rng.choice([*damage.INTEGERS, None, "1"])
    elif kind == 2:
        file.setdefault("lfs", {})["sha256"] = rng.choice(["../x", "", "0" * 64, "x" * 64, None])
    elif kind == 3:
        told["sha"] = rng.choice(["../../x", "", None, "main", COMMIT.upper(), "x" * 9999])
    elif kind == 4:
        told["siblings"] *= rng.choice([2, 3000])
    else:
        return damage.structured_json(rng, json.dumps(told).encode())
    return json.dumps(told).encode()


def odd_answer(rng, hub, files):
    """Replaces the answer for a path."""
    path = rng.choice([path for path in hub.answers])
    whole = hub.answers[path]
    length = {"content-length": str(len(whole.body))}
    nothing = {"content-length": "0"}
    odd = [Answer(status, nothing, b"") for status in (401, 403, 404, 416)]
    odd += [Answer(302, {**nothing, "location": to}, b"") for to in (path, "file:///etc/passwd", "\x80 ://", "")]
    odd += [
        Answer(302, nothing, b""),
        Answer(204, {}, b""),
        Answer(206, {**length, "content-range": "bytes 5-9/7"}, whole.body),
        Answer(200, {**length, "content-encoding": "gzip"}, whole.body),
        Answer(200, {**length, "etag": "x" * 30000}, whole.body),
        Answer(200, {}, whole.body[:-1]),
        Answer(200, {}, whole.body * 2),
        Answer(200, length, b"<html>" + whole.body[6:]),
        Answer(999, length, whole.body),
    ]
    hub.answers[path] = rng.choice(odd)


def damage_hub(bench, hub, env):
    """Serves a repository that is damaged, fetches it and uses it."""
    rng, work = bench.campaign.random, bench.campaign.work
    if rng.randrange(3):
        kind, name, folder = "models", "me/tiny", rng.choice(["llama", "shards", "model"])
        files = {path.name: path.read_bytes() for path in (work / folder).iterdir() if path.is_file()}
        commands = [Command(["get", "hf:me/tiny"]), sample("hf:me/tiny")]
    else:
        kind, name = "datasets", "me/texts"
        content = work / rng.choice(["texts.parquet", "documents.jsonl", "text.txt"])
        files = {f"data/train-{number}{content.suffix}": content.read_bytes() for number in range(2)}
        column = ["--text-field=snappy"] if "data/train-0.parquet" in files else []
        commands = [Command(["get", "hf:me/texts"]), prepare("hf:me/texts", *column)]
    hub.answers.clear()
    how = rng.choice(["a list that lies", "a damaged file with its own hash", "a damaged file", "an odd answer"])
    if how == "a list that lies":
        hub.serve(kind, name, files, lie(rng, files, name))
    elif how == "an odd answer":
        hub.serve(kind, name, files)
        odd_answer(rng, hub, files)
    else:
        path = rng.choice(list(files))
        damages = {"safetensors": damage.safetensors, "json": damage.structured_json, "parquet": damage.parquet,
                   "jinja": damage.template_file}
        changed = damages.get(path.rsplit(".")[-1], damage.raw)(rng, files[path])
        told = files if how == "a damaged file" else {**files, path: changed}
        hub.serve(kind, name, {**files, path: changed}, json.dumps(listing(name, told)).encode())
    codes = []
    for command in commands:
        codes.append(bench.run(command, f"the hub with {how}", env).code)
        if codes[-1] != 0:
            break
    bench.count("hub", all(code == 0 for code in codes))


def attack(campaign, count):
    """Damages files of each family in turn, and runs commands that read them. Each must end with a code of the contract,
    with an error and a hint if it refuses, and change nothing but its own output."""
    limit_memory(MEMORY)
    if not make_files(campaign):
        return
    campaign.asked.update({"work", "original", "elsewhere"})
    bench = Bench(campaign)
    by_family = targets(campaign.work)
    # What refuses whole files tests nothing.
    for target in (target for family in by_family.values() for target in family):
        for command in target.commands:
            if bench.run(command, "whole files").code != 0:
                return campaign.finding(f"`{' '.join(command.args)}` refuses whole files")
        bench.restore()
    campaign.left_out("templates that add a list to itself again and again: minijinja 3.1 counts no fuel for them, "
                      "so that nothing ends them")
    if os.geteuid() != 0:
        campaign.left_out("devices in place of files, which only root may make")
    hub = Hub()
    families = [*by_family, "limits", "links", "hub"]
    if campaign.options.family:
        if campaign.options.family not in families:
            sys.exit(f"error: no family {campaign.options.family!r}\n  hint: choose one of {', '.join(families)}")
        families = [campaign.options.family]
    for bench.number in range(1, count + 1):
        family = families[bench.number % len(families)]
        if family == "hub":
            damage_hub(bench, hub, {"HF_ENDPOINT": hub.address})
        elif family == "limits":
            target, how = odd_files.enlarge(bench, by_family)
            limit_memory(LITTLE_MEMORY)
            damage_file(bench, family, target, how)
            limit_memory(MEMORY)
        elif family == "links":
            damage_file(bench, family, *odd_files.link(bench, hub, by_family))
        else:
            target = campaign.random.choice(by_family[family])
            damage_file(bench, family, target, mutate(campaign, target))
        bench.restore()
        campaign.progress(f"{bench.number} mutants")
    print(f"\n{'family':<16} mutants accepted refused")
    for family, (mutants, accepted, refused) in sorted(bench.counts.items()):
        print(f"{family:<16} {mutants:7} {accepted:8} {refused:7}")

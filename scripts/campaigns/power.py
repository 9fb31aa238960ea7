"""Cuts the power while the program writes, and uses what is left on the disk as a person would.

A command is recorded once. Each cut chooses a moment of it, and one of the states that the model in `disk.py`
allows then. What was reported as saved before the cut must be there, and nothing half written may be taken for
whole. Folders with the same files have the same verdict, so they are tried once.

Cuts of the same recordings without their syncs must lose something. Otherwise the campaign would find nothing.
"""

import collections
import concurrent.futures
import hashlib
import json
import re
import shutil
import sys

from . import disk
from .campaign import CODES
from .kills import steps

# A run of a tenth of a second, with several checkpoints of which the oldest are removed.
TINY = ["--device=cpu", "--data=builtin:stories", "--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=16",
        "--batch_size=2", "--eval_interval=6", "--eval_iters=1", "--warmup_iters=2", "--lr_decay_iters=24",
        "--sample_tokens=0", "--log_interval=1", "--log=csv"]
LAST = 24

# The cuts of one recording, and one in how many is made once more without the syncs.
CUTS = 100
WITHOUT_SYNCS = 10

# A cut folder is checked with commands that mostly wait.
AT_ONCE = 6

# The problem, if any, and what is there: the iteration that a run continues from, or 1 for a complete product.
Verdict = collections.namedtuple("Verdict", "problem saved")


class Commands:
    """Runs commands on a cut folder, and keeps the first problem. `scratch` is for what they write elsewhere."""

    def __init__(self, campaign, scratch):
        self.campaign, self.scratch = campaign, scratch
        self.problem = None

    def run(self, *args):
        """Returns if the command succeeded, and what it printed. A code that is not in the contract is a problem."""
        code, out = self.campaign.run(*args, seconds=60)
        if code not in CODES or "this is a bug in wgpt" in out:
            self.fail(f"{' '.join(map(str, args))} ended with {code}: {out[-500:]}")
        return code == 0, out

    def succeeds(self, *args):
        return self.run(*args)[0]

    def fail(self, problem):
        self.problem = self.problem or problem


class Training:
    """A run, or the second session of one."""

    path = "out/run"

    def __init__(self, campaign, name, flags, second_session=False):
        self.campaign, self.name, self.flags, self.second_session = campaign, name, flags, second_session
        self.train = ["train", *TINY, *flags]
        # The iteration of the last checkpoint that was reported before the recording.
        self.saved = 0

    def prepare(self, root):
        """Returns the command to record on the disk below `root`."""
        run = root / self.path
        if not self.second_session:
            return [*self.train, f"--max_iters={LAST}", f"--run={run}"]
        # It begins with what a power cut has left of the first one.
        shutil.rmtree(root)
        first = Recording(self.campaign, Training(self.campaign, self.name, self.flags))
        self.whole = first.scenario.whole
        while True:
            cut = first.cut(self.campaign.random)
            if 0 < cut.saved < LAST and f"{self.path}/config.toml" in cut.tree:
                break
        self.saved = cut.saved
        disk.write_tree(root, cut.tree)
        return ["train", "--device=cpu", "--resume", f"--run={run}"]

    def reported(self, events):
        """Yields the number of each event that reports a checkpoint, and its iteration."""
        yield -1, self.saved
        for number, (kind, path, *more) in enumerate(events):
            if kind == "write" and path.endswith("events.jsonl") and b'"event":"checkpoint"' in more[1]:
                yield number, json.loads(more[1])["iter"]

    def learn(self, root):
        """Remembers how the run ends that nobody cuts."""
        if not self.second_session:
            self.whole = weights(root / self.path), steps(root / self.path), rows(root / self.path)

    def verdict(self, root):
        """Looks at the run, resumes it, and compares it with the one that nobody cut."""
        run, commands = root / self.path, Commands(self.campaign, root.parent)
        lists = commands.succeeds("runs", root)
        reports = commands.succeeds("report", run, "-o", commands.scratch / "report.html")
        samples = commands.succeeds("sample", "--device=cpu", "--max-new-tokens=2", run)
        resumes, out = commands.run("train", "--device=cpu", "--resume", f"--run={run}", f"--max_iters={LAST}")
        found = resumes and re.search(r"resuming at iteration (\d+)", out)
        saved = int(found[1]) if found else 0
        if saved and not (lists and reports and samples):
            commands.fail(f"resumed at iteration {saved}, but runs, report or sample refused it")
        if not resumes:
            begins, out = commands.run(*self.train, f"--max_iters={LAST}", f"--run={run}")
            if not begins:
                commands.fail(f"neither resumed nor begun again: {out[-500:]}")
                return Verdict(commands.problem, 0)
        whole_weights, whole_steps, whole_rows = self.whole
        own_steps = steps(run)
        different = [key for key, values in whole_steps.items() if own_steps.get(key) != values]
        if weights(run) != whole_weights:
            commands.fail("other weights at the end")
        elif different:
            commands.fail(f"events.jsonl lacks {different[:3]}, or has them differently")
        elif rows(run) != whole_rows:
            commands.fail("other rows in scalars.csv")
        return Verdict(commands.problem, saved)


def weights(run):
    """Returns the hashes of the tensors at the end."""
    files = sorted((run / "checkpoints" / f"{LAST:08}").glob("*.safetensors"))
    return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


def rows(run):
    """Returns the rows of the table, without the speed and the memory."""
    table = (run / "scalars.csv").read_text(errors="replace").splitlines()
    return sorted(row[:4] + row[6:] for row in (line.split(",") for line in table))


class Product:
    """A folder or file that a command writes, and that is complete or refused."""

    def __init__(self, campaign, name, path, args, accepts, before=None, again=()):
        self.campaign, self.name, self.path, self.args = campaign, name, path, args
        # Returns if wgpt takes the product for whole.
        self.accepts = accepts
        # The command that has written another product there before, and what writes over a half one.
        self.before, self.again = before, again

    def prepare(self, root):
        if self.before:
            code, out = self.campaign.run(*self.before, "-o", root / self.path)
            assert code == 0, out
        self.old = self.files(root)
        return [*self.args, "-o", root / self.path]

    def files(self, root):
        """Returns the product's files, without those that are named as unfinished."""
        is_unfinished = re.compile(r"/\.wgpt-export/|\.tmp$|\.part$").search
        tree = disk.read_tree(root)
        return {path: content for path, content in tree.items() if content is not None and not is_unfinished(path)}

    def reported(self, events):
        """Yields the end of the command."""
        yield len(events) - 1, 1

    def learn(self, root):
        self.whole = self.files(root)

    def verdict(self, root):
        files, commands = self.files(root), Commands(self.campaign, root.parent)
        if files == self.whole:
            return Verdict(None, 1)
        if files != self.old and self.accepts(commands, root / self.path):
            commands.fail(f"taken for whole, with {', '.join(sorted(files))}")
        done, out = commands.run(*self.args, "-o", root / self.path, *self.again)
        if not done:
            commands.fail(f"cannot be written again: {out[-500:]}")
        elif self.files(root) != self.whole:
            commands.fail("written again, it is different")
        return Verdict(commands.problem, 0)


def trains(commands, data):
    return commands.succeeds("train", *TINY, f"--data={data}", "--max_iters=1", f"--run={commands.scratch / 'run'}")


def samples(commands, model):
    return commands.succeeds("sample", "--device=cpu", "--max-new-tokens=1", model)


def exists(_, file):
    return file.exists()


def has_index(_, page):
    return (page / "index.html").exists()


# How many events were before a power cut, what they had reported as saved, and the files after it.
Cut = collections.namedtuple("Cut", "moment saved tree")


class Recording:
    """What a command of a scenario has done to the disk."""

    def __init__(self, campaign, scenario):
        self.scenario = scenario
        root = (campaign.folder / "disk").resolve()
        root.mkdir()
        args = scenario.prepare(root)
        self.before = disk.read_tree(root)
        code, out, self.events = disk.record(campaign, root, *args)
        after = disk.read_tree(root)
        assert code == 0, f"{scenario.name} ended with {code}: {out}"
        assert self.at(len(self.events)).tree() == after, f"{scenario.name}: the recording is not complete"
        scenario.learn(root)
        self.reports = list(scenario.reported(self.events))
        # Most events are writes. Half of the cuts are next to others: syncs, renames, and the end.
        others = [number for number, event in enumerate(self.events) if event[0] not in ("write", "seek", "open")]
        self.moments = [number + later for number in others for later in (0, 1)] + [len(self.events)]
        shutil.rmtree(root)

    def at(self, number, syncs=True):
        """Returns the disk before the event of this number."""
        state = disk.Disk(self.before)
        for event in self.events[:number]:
            if syncs or not event[0].startswith("sync"):
                state.repeat(*event)
        return state

    def cut(self, random, syncs=True):
        """Cuts the power at a random moment."""
        moment = random.choice([random.randint(0, len(self.events)), random.choice(self.moments)])
        saved = max((saved for number, saved in self.reports if number < moment), default=0)
        return Cut(moment, saved, self.at(moment, syncs).after_cut(random))


def scenarios(campaign):
    """Returns all scenarios, and writes the files that their commands read."""
    folder = campaign.folder
    text = "".join(f"It was dark night {number}. The {number * 7 % 31} winds sang.\n" for number in range(500))
    (folder / "text.txt").write_text(text)
    (folder / "other.txt").write_text(text.replace("dark", "DEEP")[:9000])
    (folder / "chats.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": "Yes."}]}) + "\n"
        for i in range(200)))
    web = folder / "web"
    web.mkdir()
    for name, content in {"index.html": "<html><head></head></html>", "wgpt.js": "//", "wgpt.wasm": "0" * 3000}.items():
        (web / name).write_text(content)
    for args in (["train", *TINY, "--max_iters=6", "--run=run"], ["export", "run", "-o", "model"]):
        code, out = campaign.run(*args)
        assert code == 0, out
    optimizers = {"adamw": [], "muon": ["--optimizer=muon"], "offload": ["--offload_optimizer=true"]}
    bpe, force = "--tokenizer=bpe:300", ["--force"]
    text, other, chats = (["prepare", name, "--val-fraction=0.1"] for name in ("text.txt", "other.txt", "chats.jsonl"))
    return [
        *(Training(campaign, f"train, {name}", flags) for name, flags in optimizers.items()),
        *(Training(campaign, f"resume, {name}", flags, second_session=True) for name, flags in optimizers.items()),
        Product(campaign, "prepare", "data/text", [*text, bpe], trains, again=force),
        Product(campaign, "prepare, chats", "data/chats", [*chats, bpe], trains, again=force),
        Product(campaign, "prepare --force", "data", [*text, bpe, *force], trains, before=other),
        Product(campaign, "prepare --force, tokenizer", "data", [*text, bpe, *force], trains, before=[*other, bpe]),
        Product(campaign, "export", "models/model", ["export", "run"], samples),
        Product(campaign, "export, gguf", "models/model.gguf", ["export", "run"], exists),
        Product(campaign, "export, page", "pages/page", ["export", "run", "--format=page", "--web=web"], has_index),
        Product(campaign, "import", "models/model", ["import", "model"], samples),
    ]


class Tries:
    """The cuts of a scenario, and their verdicts."""

    def __init__(self, campaign, pool):
        self.campaign, self.pool = campaign, pool
        self.cuts = self.lost = self.cuts_without_syncs = self.lost_without_syncs = 0
        self.verdicts = {}
        self.folders = set()

    def verdict(self, scenario, tree):
        """Returns the verdict on a folder, which another thread may be looking for."""
        digest = digest_of(tree)
        if digest not in self.verdicts:
            folder = self.campaign.folder / f"cut-{digest[:16]}"
            self.verdicts[digest] = self.pool.submit(look, scenario, tree, folder)
        return self.verdicts[digest]

    def try_cuts(self, recording, count, syncs=True):
        cuts = [recording.cut(self.campaign.random, syncs) for _ in range(count)]
        verdicts = [self.verdict(recording.scenario, cut.tree) for cut in cuts]
        for cut, verdict in zip(cuts, (verdict.result() for verdict in verdicts)):
            problem = verdict.problem
            if problem is None and verdict.saved < cut.saved:
                problem = f"lost: {cut.saved} was reported as saved, {verdict.saved} is there"
            if not syncs:
                self.cuts_without_syncs += 1
                self.lost_without_syncs += problem is not None
                continue
            self.cuts += 1
            self.folders.add(digest_of(cut.tree))
            if problem:
                self.lost += 1
                self.keep(recording, cut, problem)

    def keep(self, recording, cut, problem):
        """Reports a finding, and keeps the folder that shows it."""
        kept = self.campaign.folder / f"{recording.scenario.name}-{self.lost}".replace(", ", "-").replace(" ", "-")
        disk.write_tree(kept, cut.tree)
        last = recording.events[cut.moment - 1][:2] if cut.moment else "nothing"
        self.campaign.finding(f"{recording.scenario.name}, cut after {last}, {kept}: {problem}")


def digest_of(tree):
    return hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()


def look(scenario, tree, folder):
    """Returns the verdict on a folder."""
    root = folder / "disk"
    disk.write_tree(root, tree)
    verdict = scenario.verdict(root)
    shutil.rmtree(folder)
    return verdict


def attack(campaign, count):
    """Cuts the power `count` times, as often in each scenario."""
    if not shutil.which("strace"):
        sys.exit("the campaign records system calls with strace, which is not installed")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        tries = {scenario: Tries(campaign, pool) for scenario in scenarios(campaign)}
        done = 0
        while done < count:
            for scenario, tried in tries.items():
                recording = Recording(campaign, scenario)
                cuts = min(CUTS, -(-count // len(tries)))
                tried.try_cuts(recording, cuts)
                tried.try_cuts(recording, -(-cuts // WITHOUT_SYNCS), syncs=False)
                done += cuts
                campaign.progress(f"{done} cuts")
    print("\nscenario: cuts, different folders, lost; cuts without syncs, lost")
    for scenario, tried in tries.items():
        print(f"  {scenario.name}: {tried.cuts}, {len(tried.folders)}, {tried.lost}; "
              f"{tried.cuts_without_syncs}, {tried.lost_without_syncs}")
    print(f"  all: {done}, {sum(len(tried.folders) for tried in tries.values())} different folders")
    if not any(tried.lost_without_syncs for tried in tries.values()):
        campaign.finding("nothing was lost without syncs: the campaign finds nothing")
    for scenario, tried in tries.items():
        if tried.cuts_without_syncs >= 50 and not tried.lost_without_syncs:
            campaign.finding(f"{scenario.name}: nothing was lost without syncs: these cuts find nothing")

"""Gives commands the causes of the documented exit codes. A command that is refused changes no file."""

import fcntl
import os
import resource
import shutil

from . import watch
from .campaign import SMALL, kill_all, wait, wait_for_others
from .kills import launcher

TRAIN = [*SMALL, "--max_iters=4", "--lr_decay_iters=4", "--warmup_iters=0"]

# The size of a file where the disk is full.
FULL = 2000


def make_files(campaign):
    """Makes a run, models, data and broken copies of them. Returns an open lock of a run."""
    work = campaign.work
    (work / "text.txt").write_text("It was a dark night. " * 500)
    for args in (["prepare", "text.txt", "-o", "data", "--tokenizer=byte"],
                 ["train", "--device=cpu", *TRAIN, "--data=data", "--arch=llama", "--bias=false", "--run=run"],
                 ["export", "run", "-o", "model"]):
        ended = campaign.run(*args)
        if ended.code != 0:
            return campaign.finding(f"{' '.join(args)} {ended}")
    for name in ("model", "run", "data"):
        shutil.copytree(work / name, work / f"broken-{name}")
    weights = (work / "model/model.safetensors").read_bytes()
    shutil.copytree(work / "model", work / "nan")
    (work / "nan/model.safetensors").write_bytes(weights[:-400] + b"\xff" * 400)
    (work / "broken-model/model.safetensors").write_bytes(weights[:-9])
    (work / "broken-data/meta.json").write_text("{")
    for file in (work / "broken-run/checkpoints").glob("*/state.json"):
        file.write_text("{")
    lock = open(work / "run/lock", "a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def cases(campaign):
    """Returns the cases by their causes: an exit code and the arguments of a command."""
    cpu = "--device=cpu"
    train = [["train", *TRAIN, "--run=new"], ["sweep", *TRAIN, "--seeds=2", "-o", "new"]]
    if launch := launcher(campaign):
        train.append([*launch, *TRAIN, "--run=new"])
    models = [["sample", cpu], ["eval", cpu, "--data=data"], ["export", "-o", "new"]]
    every = ["train", "sample", "eval", "chat", "bench", "sweep", "plan", "prepare", "export", "import", "runs", "report",
             "compare", "devices", "doctor", "get", "launch"]
    return {
        "a flag that is none": [(2, [name, "--nonsense"]) for name in every],
        "settings that do not fit each other": [(2, [*args, cpu, "--n_head=3"]) for args in train],
        "a run in use": [(2, ["train", "--resume", cpu, "--run=run", "--max_iters=9"])],
        "no room on the device": [(3, [*args, cpu, "--vram_budget=1MiB"]) for args in [*train, ["plan", "--preset=gpt2"]]],
        "no such device": [(4, [*args, "--device=vulkan:99"]) for args in [*train, ["sample", "run"], ["eval", "run"], ["bench"]]],
        "a loss that is not finite": [(6, [*args, cpu, "--learning_rate=1e30", "--max_iters=40"]) for args in train if args[0] != "sweep"],
        "a model that is broken": [(7, [*args, name]) for args in models for name in ("broken-model", "nan", "broken-run")
                                   if (args[0], name) != ("export", "nan")],
        "a model that is nowhere": [(7, [*args, "nowhere"]) for args in [*models, ["chat"], ["import", "-o", "new"]]],
        "data that is broken": [(7, [*args, cpu, f"--data={name}"]) for args in train for name in ("broken-data", "nowhere")],
        "a start that is broken": [(7, [*train[0], cpu, "--data=data", f"--init_from={name}"]) for name in ("broken-model", "nan", "nowhere")],
        "a full disk": [(1, args) for args in (["prepare", "text.txt", "-o", "new"], [*train[0], cpu], ["export", "run", "-o", "new"],
                                               ["report", "run", "-o", "new.html"])],
    }


def attack(campaign, count):
    """Runs `count` commands, of each cause in turn."""
    lock = make_files(campaign)
    if lock is None:
        return
    campaign.asks("new")
    campaign.asked.add("work")
    by_cause, random = cases(campaign), campaign.random
    codes = {}
    for number in range(count):
        cause = list(by_cause)[number % len(by_cause)]
        wanted, args = random.choice(by_cause[cause])
        flags = random.sample(["--quiet", "--color=always", "--verbose"], random.randrange(3))
        before = watch.tree(campaign.work)
        is_full = cause == "a full disk"
        if is_full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, resource.RLIM_INFINITY))
        process = campaign.start(*args, *flags)
        ended = wait(process, 120)
        # A launcher that fails does not wait for its last rank.
        if ended is None or not wait_for_others(process):
            kill_all(process)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        shown = f"{cause}: `{' '.join(map(str, [*args, *flags]))}`"
        if ended is None or ended.code != wanted or not ("rror: " in ended.err or "rror:\x1b" in ended.err):
            campaign.finding(f"{shown} is not {wanted}, or no error: it {ended or 'did not end'}")
        # A sweep keeps its list of runs. Weights are read when a run has begun.
        may_change = is_full or wanted == 6 or args[0] == "sweep" or "--init_from=nan" in args
        made = [] if may_change else watch.changes(before, watch.tree(campaign.work))
        if made:
            campaign.finding(f"{shown} has changed {', '.join(made[:5])}")
        path = campaign.work / "new"
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        codes[wanted] = codes.get(wanted, 0) + 1
        campaign.progress(f"{number + 1} commands")
    lock.close()
    print("\ncommands by exit code: " + ", ".join(f"{code}: {number}" for code, number in sorted(codes.items())))

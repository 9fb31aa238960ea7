"""Kills commands at random moments and starts them again. What they have made in the end must equal what they make if
nobody kills them."""

import hashlib
import json
import os
import shutil
import signal
import time
from typing import Callable, NamedTuple

from .campaign import CODES, SMALL, kill_all, processes, send, wait, wait_for_others

# A command is killed so often, and then ends by itself.
MOST_KILLS = 8

SHORT = ["--max_iters=60", "--lr_decay_iters=60"]


class Kind(NamedTuple):
    """A command that makes a folder: its arguments at first, and when it is started again."""

    name: str
    start: Callable
    again: Callable
    # Returns what is different in two folders, or None.
    compare: Callable
    # What it says if the one before was killed after its last write.
    finds_result: str = ""


def steps(run):
    """Returns the numbers of each update, and all of an update that was made several times."""
    numbers = {}
    for line in (run / "events.jsonl").read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            # A killed process leaves half a line.
            continue
        if event.get("event") in ("step", "eval"):
            values = tuple(event.get(key) for key in ("loss", "grad_norm", "norm", "lr", "train_loss", "val_loss"))
            numbers.setdefault((event["event"], event["iter"]), set()).add(values)
    return numbers


def file_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(run):
    """Returns the hashes of the last checkpoint's tensors."""
    # Others are damaged ones, or half written.
    last = max(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())
    return last.name, {file.name: file_hash(file) for file in last.glob("*.safetensors")}


def compare_runs(whole, run):
    if weights(run) != weights(whole):
        return f"other weights than {whole}"
    numbers = steps(run)
    other = [key for key, values in steps(whole).items() if numbers.get(key) != values]
    return f"other losses than {whole}, the first at {min(other, key=lambda key: key[1])}" if other else None


def compare_sweeps(whole, sweep):
    # A process that is killed while it replaces a file leaves the new one under another name.
    names, theirs = ({path.name for path in at.iterdir() if not path.name.startswith(".tmp")} for at in (whole, sweep))
    if names != theirs:
        return f"other runs than {whole}"
    different = [compare_runs(whole / name, sweep / name) for name in names if (whole / name).is_dir()]
    return next(filter(None, different), None)


def compare_files(whole, folder):
    """Compares the files of folders, but for the model card, which tells its folder."""
    wanted, found = ({path.name: file_hash(path) for path in at.iterdir() if path.name != "README.md"}
                     for at in (whole, folder))
    other = [name for name in wanted | found if wanted.get(name) != found.get(name)]
    return f"other files than {whole}: {', '.join(other)}" if other else None


def training(name, command, flags):
    """Returns the kind of a run: `command` is `train` or `launch` with its arguments."""
    def again(run):
        started = (run / "config.toml").exists()
        return [*command, "--resume", f"--run={run}"] if started else start(run)

    def start(run):
        return [*command, *SMALL, *flags, f"--run={run}"]

    return Kind(name, start, again, compare_runs)


def repeated(name, compare, *args, finds_result=""):
    """Returns the kind of a command that is started again as it was started."""
    def start(folder):
        return [*args, "-o", folder]

    return Kind(name, start, start, compare, finds_result=finds_result)


def launcher(campaign):
    """Returns the command that starts two ranks, or None."""
    if not shutil.which("mpirun"):
        return campaign.left_out("ranks, because there is no mpirun")
    # The copies between processes that a container forbids.
    campaign.env["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    # mpirun leaves a folder of its own if it is killed.
    campaign.asked.add("tmp")
    as_root = ["--mpi=--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["launch", "-n", "2", *as_root, "--mpi=--oversubscribe"]


def ranks(campaign):
    """Returns the kinds of runs with two ranks."""
    launch = launcher(campaign)
    if not launch:
        return []
    launch = [*launch, "--device=cpu"]
    return [
        training("ranks", launch, SHORT),
        training("ranks, Muon", launch, [*SHORT, "--optimizer=muon"]),
        training("ranks, sharded optimizer", launch, [*SHORT, "--shard_optimizer=true"]),
    ]


def half_precisions(campaign):
    """Returns the kinds of runs in half precision, which need a GPU or a software Vulkan."""
    devices = [device for device in campaign.devices() if device["id"].startswith("vulkan")]
    found = []
    for dtype in ("float16", "bfloat16"):
        able = [device["id"] for device in devices if dtype in device["dtypes"]]
        if able:
            train = ["train", f"--device={able[0]}", "--no-self-test"]
            found.append(training(dtype, train, [*SHORT, f"--dtype={dtype}"]))
        else:
            campaign.left_out(f"{dtype}, which no Vulkan device here has")
    return found


def write_long_text(campaign):
    """Writes a text that takes about a second to prepare."""
    words = ["".join(campaign.random.choices("etaoinshr", k=campaign.random.randrange(2, 9))) for _ in range(5000)]
    text = " ".join(campaign.random.choices(words, k=500_000))
    campaign.asks("long.txt").write_text(text)


def all_kinds(campaign):
    """Returns the kinds of commands that can be killed here, in the order of the seed."""
    train = ["train", "--device=cpu"]
    write_long_text(campaign)
    large = campaign.asks("large")
    made = campaign.run(*train, *SMALL, "--n_embd=256", "--n_layer=6", "--max_iters=1", "--warmup_iters=0",
                        "--lr_decay_iters=1", f"--run={large}")
    if made.code != 0:
        campaign.finding(f"a run to export {made}")
    kinds = [
        training("AdamW", train, []),
        training("Muon", train, ["--optimizer=muon"]),
        training("offload", train, ["--offload_optimizer=true"]),
        training("dropout, wsd", train, ["--dropout=0.1", "--schedule=wsd"]),
        training("checkpointed", train, ["--grad_checkpoint=true"]),
        training("chat", train, ["--data=builtin:chats", "--block_size=64"]),
        training("llama", train, ["--arch=llama", "--bias=false"]),
        training("logs", train, ["--log=csv,tensorboard"]),
        repeated("sweep", compare_sweeps, "sweep", "--device=cpu", *SMALL, *SHORT, "--learning_rate=1e-3,3e-3"),
        repeated("prepare", compare_files, "prepare", "long.txt", "--tokenizer=bpe:500", "--force"),
        repeated("export", compare_files, "export", "large", finds_result="this folder already has a model"),
        *ranks(campaign),
        *half_precisions(campaign),
    ]
    campaign.random.shuffle(kinds)
    return kinds


def disturb(campaign, kind, folder, seconds):
    """Runs a command that takes `seconds`, kills all of its processes or one of them, and starts it again, until it has
    ended. Returns the number of kills and its end, or None if something is wrong with it."""
    kills = 0
    args = kind.start(folder)
    while True:
        process = campaign.start(*args, stdin=None)
        before = kills
        ended = None
        while kills < MOST_KILLS:
            ended = wait(process, campaign.random.uniform(0, 0.6 * seconds))
            if ended:
                break
            running = processes(process)
            if not running:
                continue
            kills += 1
            if campaign.random.random() < 0.5:
                kill_all(process)
                break
            send(signal.SIGKILL, [campaign.random.choice(running)])
        ended = ended or wait(process, 60 + 20 * seconds)
        if ended is None or not wait_for_others(process):
            kill_all(process)
            campaign.finding(f"{kind.name}, {folder}: after {kills} kills, `{' '.join(map(str, args))}` did not end, "
                             "or not all of it")
            return kills, None
        has_result = kills and kind.finds_result and kind.finds_result in ended.err
        if ended.code == 0 or has_result:
            return kills, ended
        if kills == before or ended.code not in (*CODES, -signal.SIGKILL):
            campaign.finding(f"{kind.name}, {folder}: after {kills} kills, `{' '.join(map(str, args))}` {ended}")
            return kills, None
        args = kind.again(folder)


def attack(campaign, count):
    """Kills commands of each kind until there were `count` kills."""
    kinds = all_kinds(campaign)
    seconds, kills = {}, {kind.name: 0 for kind in kinds}
    number = 0
    while sum(kills.values()) < count:
        kind = kinds[number % len(kinds)]
        name = "".join(c if c.isalnum() else "-" for c in kind.name)
        whole = campaign.asks(f"whole-{name}")
        if not whole.exists():
            begin = time.monotonic()
            ended = campaign.run(*kind.start(whole), stdin=None)
            seconds[kind.name] = time.monotonic() - begin
            if ended.code != 0:
                return campaign.finding(f"{kind.name}: nobody killed it, and it {ended}")
        folder = campaign.asks(f"killed-{number}")
        killed, ended = disturb(campaign, kind, folder, seconds[kind.name])
        kills[kind.name] += killed
        different = ended and kind.compare(whole, folder)
        if different:
            campaign.finding(f"{kind.name}, {folder}: after {killed} kills, {different}")
        elif ended:
            shutil.rmtree(folder)
        number += 1
        campaign.progress(f"{sum(kills.values())} kills")
    print("\nkills: " + "; ".join(f"{name} {number}" for name, number in kills.items()))

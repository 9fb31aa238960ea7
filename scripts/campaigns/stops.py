"""Stops commands by signals at random moments, and lets two processes train one run without its lock file. A command
ends in time and with the exit code of its signal. What it has made in the end equals what it makes if nobody stops it."""

import os
import shutil
import signal
import sys
import time

from .campaign import SMALL, kill_all, processes, send, wait, wait_for_others
from .kills import SHORT, Kind, compare_files, ranks, repeated, training, write_long_text

CODES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}

# The time in which a command ends after a signal, in multiples of what it takes on this machine before the campaign, and
# at least in seconds. It takes a second on a machine that does nothing else.
TIMES = 15
SECONDS = 15

# A command is stopped so often, and then ends by itself.
MOST_STOPS = 3

# Commands that write nothing.
READERS = {
    "sample": ["sample", "large", "--device=cpu", "--max-new-tokens=1500"],
    "samples in a queue": ["sample", "large", "--device=cpu", "--max-new-tokens=100", "--num-samples=15"],
    "eval": ["eval", "large", "--device=cpu", "--windows=300"],
}


def reader(name):
    def args(_):
        return READERS[name]

    return Kind(name, args, args, lambda *_: None)


def those(ids, test):
    """Returns the processes that pass a test. Some may have ended."""
    found = []
    for id in ids:
        try:
            found += [id] if test(id) else []
        except OSError:
            continue
    return found


def stop_once(campaign, kind, folder, args, seconds):
    """Starts a command that takes `seconds` and sends it a signal. Returns its exit code, or None for a finding."""
    number = campaign.random.choice(list(CODES))
    shown = f"{kind.name}, {folder}: `{' '.join(map(str, args))}` after {signal.Signals(number).name}"
    process = campaign.start(*args, stdin=None)
    ended = wait(process, campaign.random.uniform(0, 1.2 * seconds))
    if ended:
        return 0 if ended.code == 0 else campaign.finding(f"{shown} that was never sent {ended}")
    running = processes(process)
    # A scheduler sends signals to all processes or to any rank, a person to the first, and a terminal to its group.
    group = those(running, lambda id: os.getpgid(id) == os.getpgid(process.pid))
    ids = campaign.random.choice([running, group, [process.pid]])
    if number == signal.SIGTERM and "ranks" in kind.name and campaign.random.randrange(2):
        own = those(running, lambda id: os.path.samefile(f"/proc/{id}/exe", campaign.program))
        ids = [campaign.random.choice(own or running)]
    begin = time.monotonic()
    send(number, ids)
    ended = wait(process, campaign.patience)
    if ended is None or not wait_for_others(process):
        kill_all(process)
        return campaign.finding(f"{shown} to {ids} of {running} did not end in {campaign.patience:.0f} s")
    campaign.longest = max(campaign.longest, time.monotonic() - begin)
    # What has nothing to save leaves it to the system, and so does what has just begun.
    if ended.code not in (0, CODES[number], *([-number] if kind.name in READERS or not ended.err else [])):
        return campaign.finding(f"{shown} to {ids} of {running} {ended}")
    return ended.code


def measure_end(campaign, run):
    """Returns the seconds in which a command that samples ends after a signal."""
    process = campaign.start("sample", run, "--device=cpu", "--max-new-tokens=1500", stdin=None)
    wait(process, 2)
    begin = time.monotonic()
    send(signal.SIGTERM, [process.pid])
    if wait(process, 300) is None:
        kill_all(process)
    return time.monotonic() - begin


def stop(campaign, kind, folder, seconds):
    """Stops a command until it ends by itself. Returns how often, or None for a finding."""
    args = kind.start(folder)
    for stops in range(MOST_STOPS):
        code = stop_once(campaign, kind, folder, args, seconds)
        if not code:
            return None if code is None else stops
        if kind.name == "prepare" and folder.exists():
            return campaign.finding(f"{kind.name}, {folder}: a stop has left {os.listdir(folder)}")
        args = kind.again(folder)
    ended = campaign.run(*args, stdin=None)
    if ended.code != 0:
        return campaign.finding(f"{kind.name}, {folder}: after {MOST_STOPS} stops, `{' '.join(map(str, args))}` {ended}")
    return MOST_STOPS


def unlock(campaign, kind, folder, seconds):
    """Lets processes train one run whose lock file is removed. Returns how often, or None for a finding."""
    first = campaign.start(*kind.start(folder), stdin=None)
    others, until = [], time.monotonic() + seconds
    while time.monotonic() < until and len(others) < MOST_STOPS:
        time.sleep(campaign.random.uniform(0, seconds / 2))
        if (folder / "config.toml").exists():
            (folder / "lock").unlink(missing_ok=True)
            others.append(campaign.start(*kind.again(folder), stdin=None))
    for process in [first, *others]:
        ended = wait(process, 60 + 20 * seconds)
        # The folder is in use, or somebody else has the lock.
        if ended is None or ended.code not in (0, 1, 2) or "this is a bug in wgpt" in ended.err:
            kill_all(process)
            return campaign.finding(f"{kind.name}, {folder}: without its lock file it {ended or 'did not end'}")
    ended = campaign.run(*kind.again(folder), stdin=None)
    if ended.code != 0:
        return campaign.finding(f"{kind.name}, {folder}: trained by several processes, it {ended}")
    return len(others)


def attack(campaign, count):
    """Stops commands of each kind until there were `count` stops or removed locks."""
    write_long_text(campaign)
    train = ["train", "--device=cpu"]
    large = campaign.asks("large")
    made = campaign.run(*train, *SMALL, "--n_embd=128", "--n_layer=4", "--max_iters=1", "--warmup_iters=0", "--lr_decay_iters=1",
                        f"--run={large}")
    if made.code != 0:
        return campaign.finding(f"a run to sample from {made}")
    campaign.patience = max(SECONDS, TIMES * measure_end(campaign, large))
    kinds = [
        training("AdamW", train, []),
        training("offload, Muon", train, ["--offload_optimizer=true", "--optimizer=muon"]),
        training("samples", train, ["--sample_tokens=500"]),
        *ranks(campaign)[::2],
        repeated("prepare", compare_files, "prepare", "long.txt", "--tokenizer=bpe:500", "--force"),
        *map(reader, READERS),
        training("two trainers", train, []),
    ]
    if campaign.options.family:
        kinds = [kind for kind in kinds if kind.name == campaign.options.family] or sys.exit("error: no kind has this name")
    campaign.random.shuffle(kinds)
    campaign.longest, number, seconds, stops = 0, 0, {}, {kind.name: 0 for kind in kinds}
    while sum(stops.values()) < count and number < 4 * count:
        kind = kinds[number % len(kinds)]
        whole, folder = campaign.asks(f"whole-{number % len(kinds)}"), campaign.asks(f"stopped-{number}")
        if kind.name not in seconds:
            begin = time.monotonic()
            ended = campaign.run(*kind.start(whole), stdin=None)
            seconds[kind.name] = time.monotonic() - begin
            if ended.code != 0:
                return campaign.finding(f"{kind.name}: nobody stopped it, and it {ended}")
        disturb = unlock if kind.name == "two trainers" else stop
        stopped = disturb(campaign, kind, folder, seconds[kind.name])
        stops[kind.name] += stopped or 0
        different = None if stopped is None else kind.compare(whole, folder)
        if different:
            campaign.finding(f"{kind.name}, {folder}: after {stopped} stops, {different}")
        elif stopped is not None:
            shutil.rmtree(folder, ignore_errors=True)
        number += 1
        campaign.progress(f"{sum(stops.values())} stops")
    print(f"\nlongest end {campaign.longest:.1f} s; stops: " + "; ".join(f"{name} {number}" for name, number in stops.items()))

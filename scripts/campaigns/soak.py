"""Trains for a long time. Memory, open files and the run folder must not grow."""

import math
import os
import pathlib
import signal
import time
from typing import NamedTuple

from .campaign import SMALL, kill_all, processes, wait

TRAIN = [*SMALL, "--max_iters=1000000000", "--lr_decay_iters=1000000000", "--eval_interval=500", "--sample_tokens=16"]

# Seconds between two measurements.
INTERVAL = 10

# The first part of a run, in which caches fill.
WARM_UP = 0.25

# The growth of memory that is taken for noise, in MiB an hour.
MOST_GROWTH = 0.5

# The largest run folder, in MiB: the records are thinned above 64 MiB, and a few checkpoints of a tiny model are small.
MOST_FOLDER = 160

MIB = 1 << 20


class Measurement(NamedTuple):
    seconds: float
    # Of all processes: MiB that come from no file, and open files.
    memory: float
    files: int
    # Of the run folder: its MiB, and its files.
    folder: float
    entries: int


def own_memory(process):
    """Returns the MiB of a process that come from no file. Pages of files may be shared with other programs, and
    the kernel drops them when it likes. Shared memory of several processes counts in parts."""
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    lines = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) / 1024


def measure(process, run, begin):
    memory, files = 0.0, 0
    for id in processes(process):
        try:
            memory += own_memory(id)
            files += len(os.listdir(f"/proc/{id}/fd"))
        except OSError:
            # It has ended.
            continue
    sizes = []
    for folder, _, names in os.walk(run):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                # An old checkpoint was removed.
                continue
    return Measurement(time.monotonic() - begin, memory, files, sum(sizes) / MIB, len(sizes))


def slope(points):
    """Returns the slope of a line through points (x, y) by least squares, and its standard error."""
    count = len(points)
    mean_x, mean_y = (sum(values) / count for values in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    found = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - found * (x - mean_x)) ** 2 for x, y in points)
    return found, math.sqrt(rest / (count - 2) / spread)


def judge(campaign, measured):
    """Finds what has grown. Needs measurements after the first quarter of the run."""
    late = [at for at in measured if at.seconds >= measured[-1].seconds * WARM_UP]
    if len(late) < 8:
        return print(f"{len(late)} measurements are too few to see growth: take at least {12 * INTERVAL} s")
    growth, error = slope([(at.seconds / 3600, at.memory) for at in late])
    last = late[-1]
    print(f"memory {last.memory:.1f} MiB, growing by {growth:.2f} +- {error:.2f} MiB an hour; {last.files} open files; "
          f"run folder {last.folder:.1f} MiB in {last.entries} files")
    # With two standard errors, one soak in forty would be found without a reason.
    if growth - 3 * error > MOST_GROWTH:
        campaign.finding(f"memory grows by {growth:.2f} +- {error:.2f} MiB an hour")
    for what in ("files", "entries"):
        early, later = (max(getattr(at, what) for at in part) for part in (late[:len(late) // 2], late[len(late) // 2:]))
        # A checkpoint is written next to the old ones.
        if later > early + 12:
            campaign.finding(f"{what}: at most {early} in the first half, {later} in the second")
    if last.folder > MOST_FOLDER:
        campaign.finding(f"the run folder has {last.folder:.0f} MiB, more than {MOST_FOLDER}")


def attack(campaign, seconds):
    """Trains for `seconds`, measures every ten, and stops the run."""
    run = campaign.asks("run")
    with open(campaign.asks("output.txt"), "wb") as output:
        process = campaign.start("train", f"--device={campaign.options.device}", *TRAIN, f"--run={run}", stdin=None,
                                 stdout=output, stderr=output)
    begin = time.monotonic()
    measured = []
    while (left := seconds - (time.monotonic() - begin)) > 0:
        time.sleep(min(INTERVAL, left))
        if process.poll() is not None:
            said = (campaign.work / "output.txt").read_text(errors="replace")[-1000:]
            campaign.finding(f"the run ended after {time.monotonic() - begin:.0f} s with {process.returncode}: {said}")
            break
        measured.append(measure(process, run, begin))
        campaign.progress(f"{measured[-1].seconds:.0f} s, {measured[-1].memory:.1f} MiB")
    else:
        process.send_signal(signal.SIGTERM)
        ended = wait(process, 120)
        if ended is None or ended.code != 143:
            campaign.finding(f"the run did not stop after SIGTERM: {ended and ended.code}")
            kill_all(process)
    lines = "\n".join(",".join(f"{value:.2f}" for value in at) for at in measured)
    campaign.asks("measurements.csv").write_text(f"{','.join(Measurement._fields)}\n{lines}\n")
    print()
    if measured:
        judge(campaign, measured)

"""Fails a software Vulkan at each allocation and submission of a run. The run must end with the weights of one without
faults, or with an error that says what to do."""

import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

from .campaign import SMALL
from .kills import compare_runs, steps

BUILD = pathlib.Path(__file__).parents[2] / "tests/driver/build.sh"

DEVICE = ["--device=vulkan:0", "--no-self-test"]
TRAIN = ["train", *DEVICE, "--vram_budget=none", *SMALL, "--gradient_accumulation_steps=1", "--max_iters=60",
         "--lr_decay_iters=60", "--eval_iters=1"]

# What a smaller micro-batch may change in a loss.
ROUNDING = 1e-3

# From this number of faults on, some are hangs. On a software device a short run notices one after half an hour: it
# does not know yet how long the device is usually silent.
HUNG = "submission hung"
HANGS_FROM = 50
HANG_SECONDS = 2700

# The longest time without a device, in seconds, in a short campaign and a long one.
SHORT_LOSS, LONG_LOSS = 4, 120

# A run that gives up has tried for five minutes.
SECONDS = 900


class Fault(NamedTuple):
    kind: str
    # Variables of tests/driver/README.md.
    variables: dict
    # A fault of one process of the run, or of every one.
    is_once: bool = True
    flags: list = []


def build_driver(campaign):
    """Compiles the driver that fails, and makes all commands use it."""
    folder = campaign.folder / "driver"
    built = subprocess.run(["sh", str(BUILD), str(folder)], capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(f"{built.stderr}error: the driver that fails needs a C compiler, Vulkan's headers and Mesa's software "
                 "driver\n  hint: on Debian, install gcc, libc6-dev, libvulkan-dev and mesa-vulkan-drivers")
    campaign.asked.add("driver")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        campaign.env[name] = str(folder / "manifest.json")
    campaign.env.pop("VK_ADD_DRIVER_FILES", None)


def calls_of_a_run(campaign, whole):
    """Trains without a fault. Returns the allocations and submissions of the process that trains, or None."""
    reports = campaign.folder / "driver/reports"
    reports.mkdir()
    ended = campaign.run(*TRAIN, f"--run={whole}", env={"FAULT_REPORT": f"{reports}/%p.json"}, seconds=SECONDS)
    if ended.code != 0:
        campaign.finding(f"a run without faults {ended}")
        return None
    counted = [json.loads(path.read_text()) for path in reports.iterdir()]
    most = max(counted, key=lambda report: report["submits"])
    return most["allocations"], most["submits"]


def all_faults(rng, allocations, submits, is_long):
    """Returns the faults of each kind, in the order of the seed."""
    longest = LONG_LOSS if is_long else SHORT_LOSS
    lasting = [{"FAULT_LOSE_SUBMIT": rng.randrange(1, submits + 1), way: rng.randint(1, longest)}
               for way in ["FAULT_AWAY", "FAULT_LOSE_FOR"] * 100]
    kinds = [
        [Fault("allocation refused", {"FAULT_REFUSE": n}) for n in range(1, allocations + 1)],
        [Fault("allocations refused", {"FAULT_REFUSE": f"{n}+"}, False) for n in range(1, allocations + 1)],
        [Fault("submission refused", {"FAULT_REFUSE_SUBMIT": n}) for n in range(1, submits + 1)],
        [Fault("submission lost", {"FAULT_LOSE_SUBMIT": n}) for n in range(1, submits + 1)],
        [Fault("submissions lost", {"FAULT_LOSE_SUBMIT": n}, False, ["--no-supervise"]) for n in range(1, submits + 1)],
        [Fault("device lost for a while", variables) for variables in lasting],
    ]
    if is_long:
        kinds.append([Fault(HUNG, {"FAULT_HANG_SUBMIT": n}) for n in range(1, submits + 1)])
    for faults in kinds:
        rng.shuffle(faults)
    return kinds


def sample(kinds, count):
    """Returns `count` faults, of each kind in turn, or all of them."""
    longest = max(map(len, kinds))
    turns = [faults[n] for n in range(longest) for faults in kinds if n < len(faults)]
    return turns[:count]


def has_smaller_plan(run):
    """Returns true if the run has continued with another split of its steps."""
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "replan" and event.get("from") and event["from"] != event["to"]:
            return True
    return False


def losses_differ(whole, run):
    """Returns the update whose loss is further from the other run's than rounding, or None."""
    numbers = steps(run)
    for key, values in sorted(steps(whole).items()):
        if key[0] != "step":
            continue
        (wanted, *_), = values
        if not all(abs(found[0] / wanted - 1) <= ROUNDING for found in numbers.get(key, {(0,)})):
            return f"other losses than {whole}, the first in update {key[1]}"
    return None


def wrong_end(campaign, whole, run, ended):
    """Returns what is wrong with a run that had a fault, or None. One that has given up must continue."""
    if ended.code is None:
        return f"did not end in time: {ended}"
    if ended.code not in (0, 3, 4, 5) or "this is a bug in wgpt" in ended.err:
        return str(ended)
    if ended.code != 0:
        if not ("error: " in ended.err and "hint: " in ended.err):
            return f"gave up without an error and a hint: {ended}"
        if not any((run / "checkpoints").glob("*/state.json")):
            return None
        ended = campaign.run("train", "--resume", *DEVICE, f"--run={run}", seconds=SECONDS)
        if ended.code != 0:
            return f"gave up, and without the fault it {ended}"
    return losses_differ(whole, run) if has_smaller_plan(run) else compare_runs(whole, run)


def inject(campaign, fault, run):
    """Trains with a fault. Returns its variables, the end of the run, and true if the fault fired."""
    folder = campaign.folder / f"driver/{run.name}"
    folder.mkdir()
    once = folder / "once"
    variables = {name: str(value) for name, value in fault.variables.items()}
    if fault.is_once:
        variables["FAULT_ONCE"] = str(once)
    reported = {"FAULT_REPORT": f"{folder}/%p.json"}
    seconds = HANG_SECONDS if fault.kind == HUNG else SECONDS
    ended = campaign.run(*TRAIN, *fault.flags, f"--run={run}", env={**variables, **reported}, seconds=seconds)
    if fault.is_once:
        return variables, ended, once.exists()
    reports = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return variables, ended, any(report["refused"] or report["lost"] for report in reports)


def attempt(campaign, whole, fault, run):
    """Injects a fault and checks the end of its run. Returns its exit code, and true if the fault fired."""
    variables, ended, fired = inject(campaign, fault, run)
    wrong = wrong_end(campaign, whole, run, ended)
    if wrong:
        shown = " ".join(f"{name}={value}" for name, value in variables.items())
        command = " ".join([*TRAIN, *fault.flags])
        campaign.finding(f"{fault.kind}: `{shown} wgpt {command}` in {run}: {wrong}")
    elif run.exists():
        shutil.rmtree(run)
    return ended.code, fired


def attack(campaign, count):
    """Injects `count` faults, each into a run of its own."""
    build_driver(campaign)
    whole = campaign.asks("whole")
    calls = calls_of_a_run(campaign, whole)
    if calls is None:
        return
    is_long = count is None or count >= HANGS_FROM or campaign.options.family == HUNG
    if not is_long:
        campaign.left_out(f"hangs and losses of more than {SHORT_LOSS} s, which {HANGS_FROM} faults and more include")
    print(f"a run has {calls[0]} allocations and {calls[1]} submissions")
    family = campaign.options.family
    kinds = [faults for faults in all_faults(campaign.random, *calls, is_long) if family in (None, faults[0].kind)]
    faults = sample(kinds, count) if kinds else sys.exit(f"error: no kind of fault is called {family}")
    ends, silent = {}, 0
    with concurrent.futures.ThreadPoolExecutor(campaign.options.jobs) as pool:
        runs = [campaign.asks(f"faulty-{number}") for number in range(len(faults))]
        attempts = pool.map(lambda fault, run: attempt(campaign, whole, fault, run), faults, runs)
        for number, (fault, (code, fired)) in enumerate(zip(faults, attempts), 1):
            silent += not fired
            counts = ends.setdefault(fault.kind, {})
            counts[code] = counts.get(code, 0) + 1
            campaign.progress(f"{number} faults")
    print(f"\n{'fault':<26} runs by exit code" + (f"; {silent} faults did not fire" if silent else ""))
    for kind, counts in ends.items():
        print(f"{kind:<26} " + ", ".join(f"{code}: {number}" for code, number in sorted(counts.items(), key=str)))

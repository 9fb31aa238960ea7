"""What the campaigns share: the program that is attacked, its folders, its random numbers, and the findings."""

import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple, Optional

from . import watch

# A run of a second or two on two cores.
SMALL = ["--data=builtin:stories", "--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4",
         "--gradient_accumulation_steps=2", "--max_iters=200", "--eval_interval=20", "--eval_iters=2",
         "--warmup_iters=10", "--lr_decay_iters=200", "--sample_tokens=0", "--log_interval=1"]

# The exit codes of docs/command-line.md, without those of a bug and of signals.
CODES = range(8)

# Files that nothing asks wgpt to touch.
BYSTANDERS = {
    "home/.profile": "export PATH\n",
    "home/.ssh/id_ed25519": "not a key\n",
    "home/.config/wgpt-notes": "mine\n",
    "home/notes.txt": "mine\n",
    "work/notes.txt": "mine\n",
    "work/other-run/events.jsonl": "",
    "beside/notes.txt": "mine\n",
}

# The folder of caches belongs to every program.
CACHE = "home/.cache"


class Ended(NamedTuple):
    """The end of a command. The code is None if it did not end in time."""

    code: Optional[int]
    out: str
    err: str

    def __str__(self):
        return f"ended with {self.code}: {self.out[-300:]}{self.err[-700:]}"


class Campaign:
    """A folder with a home, a working folder and one for temporary files, in which all commands run."""

    def __init__(self, program, options):
        self.program = program
        self.options = options
        self.random = random.Random(options.seed)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="wgpt-campaign-"))
        self.work = self.folder / "work"
        self.found = []
        for name in ("home", "work", "tmp"):
            (self.folder / name).mkdir()
        for name, text in BYSTANDERS.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        foreign = ("WGPT_", "XDG_", "HF_", "FAULT_", "OMPI_")
        self.env = {key: value for key, value in os.environ.items()
                    if not key.startswith(foreign) and not key.lower().endswith("_proxy")}
        self.env.update(HOME=str(self.folder / "home"), TMPDIR=str(self.folder / "tmp"),
                        XDG_RUNTIME_DIR=str(self.folder / "tmp"), RAYON_NUM_THREADS="2")
        self.numbers = itertools.count(1)
        # The files and folders below `folder` that commands were asked to write.
        self.asked = {CACHE}
        self.before = watch.tree(self.folder, hashed=True)

    def asks(self, name):
        """Notes that commands may write this path of the working folder, and returns it."""
        self.asked.add(f"work/{name}")
        return self.work / name

    def start(self, *args, env=None, stdin=b"", stdout=subprocess.PIPE, stderr=subprocess.PIPE):
        """Starts a command with this input; None is one without an end. `processes` finds it and its descendants."""
        mark = f"{self.folder.name}-{next(self.numbers)}"
        process = subprocess.Popen(
            [self.program, *map(str, args)], cwd=self.work, env={**self.env, "CAMPAIGN": mark, **(env or {})},
            stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
        process.mark = mark
        # `communicate` would close it.
        process.input, process.stdin = process.stdin, None
        if stdin is not None:
            try:
                process.input.write(stdin)
                process.input.close()
            except BrokenPipeError:
                # It does not read it.
                pass
        return process

    def run(self, *args, seconds=300, env=None, stdin=b""):
        """Runs a command to its end. What it leaves running after `seconds` is killed."""
        process = self.start(*args, env=env, stdin=stdin)
        ended = wait(process, seconds)
        if ended is None:
            kill_all(process)
            out, err = process.communicate()
            return Ended(None, out.decode(errors="replace"), err.decode(errors="replace"))
        if left := processes(process):
            self.finding(f"`{' '.join(map(str, args))}` left processes: {', '.join(map(command_line, left))}; it {ended}")
            wait_for_others(process)
        return ended

    def devices(self):
        """Returns the devices that the program lists."""
        return json.loads(self.run("devices", "--json").out)

    def progress(self, text):
        if sys.stdout.isatty():
            print(f"\r{text}, {len(self.found)} findings", end="", flush=True)

    def left_out(self, text):
        print(f"left out: {text}", flush=True)

    def finding(self, text):
        self.found.append(text)
        print(f"\nFOUND: {text}", flush=True)

    def check_bystanders(self):
        """Finds the files that have changed and that no command was asked to write."""
        after = watch.tree(self.folder, hashed=True)
        changed = [path for path in watch.changes(self.before, after)
                   if not any(path == asked or path.startswith(f"{asked}/") for asked in self.asked)]
        if changed:
            self.finding(f"files that nothing was asked to write: {', '.join(changed[:20])}")


def wait(process, seconds):
    """Waits for a command and all that hold its output. Returns None if it does not end in this time."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    return Ended(process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace"))


def processes(process):
    """Returns the ids of the running processes of a command, also of those whose parents have died."""
    entry = f"CAMPAIGN={process.mark}\0".encode()
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if entry in environment + b"\0":
            found.append(int(folder.name))
    return sorted(found)


def command_line(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "one that has ended"


def wait_for_others(process, seconds=60):
    """Waits for processes that a command has left. Returns false if some are still running."""
    end = time.monotonic() + seconds
    while processes(process):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def send(number, ids):
    """Sends a signal to processes, some of which may have ended."""
    for process in ids:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def kill_all(process):
    """Kills all processes of a command at one moment: they are stopped first, so that none sees another's end."""
    stopped = []
    while (running := processes(process)) != stopped:
        send(signal.SIGSTOP, running)
        stopped = running
    send(signal.SIGKILL, stopped)
    while processes(process):
        time.sleep(0.01)

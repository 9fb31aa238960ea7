"""What the campaigns share: the program that is attacked, its folder, its random numbers, and the findings."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile

# A run of a second or two on two cores.
SMALL = ["--data=builtin:stories", "--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4",
         "--gradient_accumulation_steps=2", "--max_iters=200", "--eval_interval=20", "--eval_iters=2",
         "--warmup_iters=10", "--lr_decay_iters=200", "--sample_tokens=0", "--log_interval=1"]

# The exit codes of docs/command-line.md, without those of a bug and of signals.
CODES = range(8)


class Campaign:
    def __init__(self, program, seed):
        self.program = program
        self.random = random.Random(seed)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="wgpt-campaign-"))
        self.found = []
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("WGPT_")}
        self.env.update(HOME=str(self.folder), XDG_CACHE_HOME=str(self.folder / "cache"), RAYON_NUM_THREADS="2")

    def start(self, *args):
        command = [self.program, *map(str, args)]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *args, seconds=300):
        """Returns the exit code of a command and what it printed; None if it did not end."""
        process = self.start(*args)
        try:
            out, _ = process.communicate(timeout=seconds)
            return process.returncode, out.decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return None, out.decode(errors="replace")

    def progress(self, text):
        if sys.stdout.isatty():
            print(f"\r{text}, {len(self.found)} findings", end="", flush=True)

    def finding(self, text):
        self.found.append(text)
        print(f"\nFOUND: {text}", flush=True)

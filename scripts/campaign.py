#!/usr/bin/env python3
"""Attacks on the program, as many as one likes.

    scripts/campaign.py kills   [COUNT] [--seed N]   kills runs at random moments and resumes them
    scripts/campaign.py mutants [COUNT] [--seed N]   damages files that wgpt reads, and reads them

--program names the program (default: target/release/wgpt, or that of $CARGO_TARGET_DIR). The seed of the day
is printed. The exit code is 1 if anything was found; what was found stays in the folder that is named.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

# A run of a second or two on two cores.
SMALL = ["--data=builtin:stories", "--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4",
         "--gradient_accumulation_steps=2", "--max_iters=200", "--eval_interval=20", "--eval_iters=2",
         "--warmup_iters=10", "--lr_decay_iters=200", "--sample_tokens=0", "--log_interval=1"]

# The kinds of runs: what is different in each.
KINDS = {
    "adamw": [],
    "muon": ["--optimizer=muon"],
    "offload": ["--offload_optimizer=true"],
    "dropout, wsd": ["--dropout=0.1", "--schedule=wsd"],
    "checkpointed": ["--grad_checkpoint=true"],
    "chat": ["--data=builtin:chats", "--block_size=64"],
    "llama": ["--arch=llama", "--bias=false"],
    "logs": ["--log=csv,tensorboard"],
}

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


def weights(run):
    """Returns the hashes of the last checkpoint's tensors."""
    last = max((run / "checkpoints").iterdir(), key=lambda path: path.name)
    files = sorted(last.glob("*.safetensors"))
    return last.name, [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def kills(campaign, count):
    """Kills each kind of run until `count` runs were killed. A resumed run must equal one that nobody killed."""
    done = 0
    while done < count:
        for kind, flags in KINDS.items():
            whole = campaign.folder / f"whole-{kind}".replace(", ", "-")
            train = ["train", "--device=cpu", *SMALL, *flags]
            if not whole.exists():
                begin = time.monotonic()
                code, out = campaign.run(*train, f"--run={whole}")
                campaign.seconds = getattr(campaign, "seconds", {}) | {kind: time.monotonic() - begin}
                if code != 0:
                    return campaign.finding(f"{kind}: a run that nobody killed ended with {code}: {out[-500:]}")
            run = campaign.folder / f"killed-{done}"
            args = [*train, f"--run={run}"]
            killed = 0
            while True:
                process = campaign.start(*args)
                wait = campaign.random.uniform(0, 0.6 * campaign.seconds[kind])
                try:
                    out, _ = process.communicate(timeout=wait if killed < 8 else 300)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    killed += 1
                    args = ["train", "--device=cpu", "--resume", f"--run={run}"] if (run / "config.toml").exists() else args
            done += killed
            if process.returncode != 0:
                campaign.finding(f"{kind}, {run}: resumed after {killed} kills, it ended with {process.returncode}: "
                                 f"{out.decode(errors='replace')[-500:]}")
            elif weights(run) != weights(whole):
                campaign.finding(f"{kind}, {run}: other weights than {whole}")
            elif any(steps(run).get(key) != values for key, values in steps(whole).items()):
                campaign.finding(f"{kind}, {run}: other losses than {whole}")
            else:
                shutil.rmtree(run)
            campaign.progress(f"{done} kills")
            if done >= count:
                return


def mutate(rng, content):
    """Returns damaged content: bytes, or numbers and lines of a text."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if not content:
            return bytes(content)
        at = rng.randrange(len(content))
        # The beginning of a binary file has its structure.
        at = rng.choice([at, at % 16, at % 1024 % len(content)])
        kind = rng.randrange(9)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            del content[at:at + rng.choice([1, 4, 100])]
        elif kind == 3:
            content[at:at] = content[max(0, at - rng.randrange(1, 200)):at]
        elif kind == 4:
            content[at:at] = rng.choice([b"\0", b"\xff\xfe", b"\x1b[2J", b"\n", b'"', b"{", b"[" * 2000, b"\r\n", b"../"])
        elif kind == 5:
            content += bytes(rng.randrange(256) for _ in range(rng.randrange(1, 64)))
        elif kind == 6:
            content[at:at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, (1 << 62).to_bytes(8, "little")])
        else:
            digits = [i for i, byte in enumerate(content[:20000]) if 48 <= byte <= 57]
            if digits:
                first = last = rng.choice(digits)
                while last < len(content) and 48 <= content[last] <= 57:
                    last += 1
                content[first:last] = rng.choice([b"0", b"-1", b"1e400", b"18446744073709551615", b"1.5", b"null", b"99999999"])
    return bytes(content)


def clean(folder):
    """Removes what the commands of `mutants` write."""
    for made in ("out", "a.gguf", "page.html"):
        path = folder / made
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def mutants(campaign, count):
    """Damages files one at a time, and runs commands that read them. Each must end with a code of the contract,
    and change nothing but its own output."""
    folder = campaign.folder
    text = "It was a dark night. " * 2000
    (folder / "text.txt").write_text(text)
    (folder / "config.py").write_text("n_layer = 2\nn_head = 2\nn_embd = 32 # small\nbatch_size = 4\ndataset = 'x'\n")
    (folder / "chats.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": "Yes."}]}) + "\n"
        for i in range(200)))
    for args in (
        ["prepare", "text.txt", "-o", "data", "--tokenizer=bpe:300"],
        ["train", "--device=cpu", *SMALL, "--data=data", "--max_iters=20", "--lr_decay_iters=20", "--run=run"],
        ["export", "run", "-o", "model"],
        ["train", "--device=cpu", *SMALL, "--data=data", "--arch=llama", "--bias=false", "--max_iters=2", "--warmup_iters=0",
         "--lr_decay_iters=2", "--run=llama-run"],
        ["export", "llama-run", "-o", "llama"],
    ):
        code, out = campaign.run(*args)
        if code != 0:
            return campaign.finding(f"{' '.join(args)} ended with {code}: {out}")
    checkpoint = next((folder / "run/checkpoints").iterdir()).relative_to(folder)
    sample = ["sample", "--device=cpu", "--max-new-tokens=4"]
    readers = {
        "text.txt": [["prepare", "text.txt", "-o", "out", "--force", "--tokenizer=bpe:300"]],
        "chats.jsonl": [["prepare", "chats.jsonl", "-o", "out", "--force"]],
        "config.py": [["plan", "config.py", "--target=8GiB"]],
        "data/meta.json": [["plan", "--data=data", "--preset=demo"], ["eval", "model", "--data=data", "--device=cpu"]],
        "data/train.bin": [["eval", "model", "--data=data", "--device=cpu", "--windows=5"]],
        "data/val.bin": [["eval", "model", "--data=data", "--device=cpu", "--windows=5"]],
        "data/tokenizer.json": [["prepare", "text.txt", "-o", "out", "--force", "--tokenizer=data/tokenizer.json"]],
        "run/config.toml": [["runs", "."], ["report", "run", "-o", "page.html"], ["train", "--resume", "--run=run", "--max_iters=20", "--device=cpu"]],
        "run/events.jsonl": [["runs", "."], ["report", "run", "-o", "page.html"], ["compare", "run", "llama-run"]],
        f"{checkpoint}/state.json": [[*sample, "run"], ["train", "--resume", "--run=run", "--max_iters=20", "--device=cpu"]],
        f"{checkpoint}/config.json": [[*sample, "run"]],
        f"{checkpoint}/model.safetensors": [[*sample, "run"]],
        f"{checkpoint}/optimizer.safetensors": [["train", "--resume", "--run=run", "--max_iters=20", "--device=cpu"]],
        "model/config.json": [[*sample, "model"], ["export", "model", "-o", "a.gguf"]],
        "model/model.safetensors": [[*sample, "model"]],
        "model/tokenizer.json": [[*sample, "model"]],
        "model/tokenizer_config.json": [[*sample, "model"]],
        "llama/config.json": [[*sample, "llama"]],
        "llama/model.safetensors": [[*sample, "llama"]],
        "llama/tokenizer.json": [[*sample, "llama"], ["export", "llama", "-o", "a.gguf"]],
    }
    readers = {name: commands for name, commands in readers.items() if (folder / name).exists()}
    original = folder / "original"
    for name in ("data", "run", "model", "llama", "llama-run"):
        shutil.copytree(folder / name, original / name)
    for name in ("text.txt", "config.py", "chats.jsonl"):
        shutil.copy(folder / name, original / name)
    answers = {name: [0, 0] for name in readers}
    # What refuses whole files tests nothing.
    for args in (args for commands in readers.values() for args in commands):
        code, out = campaign.run(*args)
        clean(folder)
        if code != 0:
            return campaign.finding(f"{' '.join(args)} ended with {code} with whole files: {out[-500:]}")
    for number in range(count):
        name = campaign.random.choice(list(readers))
        mutant = mutate(campaign.random, (original / name).read_bytes())
        (folder / name).write_bytes(mutant)
        for args in readers[name]:
            code, out = campaign.run(*args, seconds=60)
            answers[name][code != 0] += 1
            if code not in CODES or "this is a bug in wgpt" in out:
                kept = folder / f"mutant-{number}"
                kept.write_bytes(mutant)
                campaign.finding(f"{name} as {kept}: {' '.join(args)} ended with {code}: {out[-500:]}")
        clean(folder)
        top = name.split("/")[0]
        if (original / top).is_dir():
            shutil.rmtree(folder / top)
            shutil.copytree(original / top, folder / top)
        else:
            shutil.copy(original / top, folder / top)
        campaign.progress(f"{number + 1} mutants")
    print("\nfile: commands that took the mutant, and that refused it")
    for name, (took, refused) in sorted(answers.items()):
        print(f"  {name}: {took}, {refused}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=["kills", "mutants"])
    parser.add_argument("count", nargs="?", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--program", default=f"{target}/release/wgpt")
    args = parser.parse_args()
    campaign = Campaign(os.path.abspath(args.program), args.seed)
    print(f"seed {args.seed}, in {campaign.folder}")
    begin = time.monotonic()
    {"kills": kills, "mutants": mutants}[args.campaign](campaign, args.count)
    print(f"\n{args.campaign}: {len(campaign.found)} findings in {time.monotonic() - begin:.0f} s, seed {args.seed}")
    if not campaign.found:
        shutil.rmtree(campaign.folder)
    sys.exit(bool(campaign.found))


if __name__ == "__main__":
    main()

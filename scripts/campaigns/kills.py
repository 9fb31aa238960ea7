"""Kills runs at random moments and resumes them. A resumed run must equal one that nobody killed."""

import hashlib
import json
import shutil
import subprocess
import time

from .campaign import SMALL

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


def attack(campaign, count):
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

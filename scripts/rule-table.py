#!/usr/bin/env python3
"""Compares the rule of docs/rule.md with nanoGPT's recipe for a CPU, and with its own neighbours.

    scripts/rule-table.py PROGRAM TEXT... [--times 30s,2min] [--seeds 3] [--neighbours] > table.tsv

Trains on every prepared TEXT for every time, one run after another, with the first device that PROGRAM finds or
with --device. Leave the machine alone meanwhile. Each line is a run's settings, the mean of the bits per byte over the
validation split, its standard error, the results, and the time used as a share of the time given. The last column is
the probability of such a difference from the rule by chance (Welch's t-test).
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# nanoGPT's README, "I only have a macbook", with as many updates as wgpt expects to fit into the time.
RECIPE = """--n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=12 --gradient_accumulation_steps=1
    --optimizer=adamw --learning_rate=1e-3 --min_lr=1e-4 --beta2=0.99 --dropout=0 --bias=false --warmup_iters=100
    --schedule=cosine --fill_time=false""".split()

# The first of the shapes in src/plan/recipe.rs, with heads of 32.
SHAPES = [(2, 64), (2, 96), (3, 96), (3, 128), (4, 128), (4, 160), (4, 192), (4, 224), (4, 256)]
SECONDS = {"s": 1, "n": 60}
COLUMNS = "text time run layers width context optimizer tokens/update updates dropout rate mean error results used p".split()


def t_test(a, b):
    """Returns the p-value of Welch's two-sided t-test, by the integral of the density of Student's t."""
    if len(a) < 2 or len(b) < 2:
        return None
    parts = [statistics.variance(x) / len(x) for x in (a, b)]
    if sum(parts) == 0:
        return None
    t = abs(statistics.mean(a) - statistics.mean(b)) / math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(p * p / (len(x) - 1) for p, x in zip(parts, (a, b)))
    # With t = sqrt(freedom) tan(angle) the density is a power of the cosine.
    steps = 20_000
    end = math.atan(t / math.sqrt(freedom))
    width = end / steps
    inner = sum(math.cos((i + 0.5) * width) ** (freedom - 1) for i in range(steps)) * width
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return max(0.0, 1 - 2 * inner / whole)


def train(args, text, time, flags, seed):
    """Trains one model. Returns its configuration, its bits per byte, its updates and the share of the time used."""
    folder = Path(tempfile.mkdtemp(dir=args.work))
    run = folder / "run"
    common = [f"--device={args.device}"] if args.device else []
    command = [args.program, "train", "--headless", f"--data={text}", f"--max_time={time}", f"--seed={seed}", "--sample_tokens=0"]
    done = subprocess.run(command + [f"--out_dir={run}"] + common + flags, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command + flags)}: {done.stderr[-2000:]}")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    start = next(e for e in events if e["event"] == "start")["config"]
    end = next(e for e in reversed(events) if e["event"] == "done")
    command = [args.program, "eval", str(run), "--json"] + common
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shutil.rmtree(folder)
    return start, result, end


def row(args, text, time, name, flags, reference=None):
    """Trains with each seed, and prints a line. Returns the results and the first run's configuration."""
    results, used, first, updates = [], [], None, []
    for seed in range(1, args.seeds + 1):
        config, result, end = train(args, text, time, flags, seed)
        first = first or config
        results.append(result["bits_per_byte"])
        used.append(end["seconds"] / SECONDS[time[-1]] / float(time.rstrip("smin")))
        updates.append(end["iter"])
    mean, error = statistics.mean(results), statistics.stdev(results) / math.sqrt(len(results)) if len(results) > 1 else 0
    tokens = first["batch_size"] * first["gradient_accumulation_steps"] * first["block_size"]
    p = t_test(results, reference) if reference else None
    print(
        Path(text).name, time, name, first["n_layer"], first["n_embd"], first["block_size"], first["optimizer"], tokens,
        round(statistics.mean(updates)), first["dropout"], f"{first['learning_rate']:.1e}", f"{mean:.4f}", f"{error:.4f}",
        " ".join(f"{x:.4f}" for x in results), f"{min(used):.3f}-{max(used):.3f}", "" if p is None else f"{p:.3f}",
        sep="\t", flush=True,
    )
    return results, first


def shape(index):
    layers, width = SHAPES[index]
    return [f"--n_layer={layers}", f"--n_embd={width}", f"--n_head={width // 32}"]


def cell(args, text, time):
    rule, config = row(args, text, time, "the rule", [])
    row(args, text, time, "nanoGPT's recipe", RECIPE, rule)
    if not args.neighbours:
        return
    batch = config["batch_size"]
    at = SHAPES.index((config["n_layer"], config["n_embd"]))
    for name, size in ("half the batch", batch // 2), ("twice the batch", batch * 2):
        if size:
            row(args, text, time, name, [f"--batch_size={size}", *shape(at)], rule)
    for name, near in ("a smaller model", at - 1), ("a larger model", at + 1):
        if 0 <= near < len(SHAPES):
            row(args, text, time, name, shape(near), rule)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--times", default="30s,2min")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--neighbours", action="store_true")
    parser.add_argument("--device", default="")
    args = parser.parse_args()
    print(*COLUMNS, sep="\t")
    with tempfile.TemporaryDirectory() as args.work:
        for text in args.texts:
            for time in args.times.split(","):
                cell(args, text, time)


if __name__ == "__main__":
    main()

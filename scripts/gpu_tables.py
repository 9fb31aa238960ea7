"""Writes the tables of scripts/gpu-check.sh: DIR/gpu-check.json -> DIR/gpu-check.md, which has the records
at its end.

    python3 gpu_tables.py DIR [FROM...]

Results in FROM, folders or files like gpu-check.md, are added to DIR/gpu-check.json first. If something was
measured several times, the last measurement counts.
"""

import json
import sys
from pathlib import Path

NAME = "gpu-check.json"

# The dtype that losses are compared with, and that PyTorch's steps fall back to.
FLOAT32 = "float32"

# The keys of the predicted bytes in different versions of `wgpt plan --json`.
PREDICTED = ("predicted_bytes", "peak_bytes", "total_bytes")


def load(path):
    """Returns the records of a folder, or those at the end of a file that was sent."""
    path = path / NAME if path.is_dir() else path
    text = path.read_text(encoding="utf-8", errors="replace")
    return json.loads(text[text.index('{"records"'):text.rindex("}") + 1])["records"]


def merge(target, others):
    """Adds the records that the target lacks."""
    records = load(target) if (target / NAME).exists() else []
    for folder in others:
        records += [record for record in load(folder) if record not in records]
    target.mkdir(parents=True, exist_ok=True)
    # One record per line, so that the shell can append.
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    (target / NAME).write_text('{"records":[\n' + lines + "\n]}\n", encoding="utf-8")
    return records


def is_unbegun(record):
    return record.get("error") == "no time left"


def last_of(records, part, key):
    """Returns the last record of each key, in the order of first appearance."""
    found = {}
    for record in records:
        # A measurement that never started does not replace an earlier one.
        if record["part"] == part and not (is_unbegun(record) and key(record) in found):
            found[key(record)] = record
    return list(found.values())


def place(record):
    """Returns device and dtype; the defaults are those of versions that did not record them."""
    return record.get("device", "vulkan:0"), record.get("dtype", FLOAT32)


def show(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value):
    return "-" if value is None else f"{value * 100:.1f}%"


def mebibytes(value):
    return show(None if value is None else value / 2**20)


def ratio(value, other, digits=2):
    return f"{value / other:.{digits}f}" if value and other else "-"


def text(value):
    return str(value).replace("|", "\\|").replace("\n", " ").strip()


def table(head, rows):
    """Formats a table. Columns of numbers are aligned to the right."""
    words = [any(c.isalpha() for row in rows for c in text(row[i])) for i in range(len(head))]
    lines = [head, ["---" if word else "---:" for word in words], *rows]
    return ["| " + " | ".join(text(cell) for cell in line) + " |" for line in lines] + [""]


def section(title, head, rows):
    return [f"## {title}", "", *table(head, rows)] if rows else []


def calls(records):
    rows = []
    for call in (record for record in records if record["part"] == "call"):
        devices = call.get("devices") or []
        used = [d for d in devices if d["id"] in call["device"].split()]
        name = "; ".join(", ".join(d[k] for k in ("name", "driver") if d.get(k)) for d in used)
        rows.append([
            call["date"], call["wgpt"], call["device"], name or "not found",
            call.get("nvidia_smi") or "-", call.get("torch") or "-", call["system"],
            call["parts"] + (", quick" if call["quick"] else ""),
        ])
    head = ["date", "version", "device", "name and driver", "nvidia-smi", "torch", "system",
            "parts"]
    return section("Runs", head, rows)


def verdict(records):
    """Names what is wrong, before all tables."""
    bad = []
    for record in last_of(records, "selftest", place):
        if record.get("error"):
            bad.append(f"self-test on {place(record)[0]}: {why(record)}")
    for run in last_of(records, "train", place):
        # A dtype that a device does not support has no events.
        if "events" in run and (run.get("error") or not run["fell"]):
            bad.append(f"training on {' in '.join(place(run))}: {run.get('error', 'the loss did not fall')}")
    for pair in last_of(records, "losses", place):
        if not pair["close"]:
            bad.append(f"the losses of {' in '.join(place(pair))} differ from those of {pair['with']}")
    for test in last_of(records, "tests", lambda test: test["name"]):
        if test.get("failed"):
            bad.append(f"tests {test['name']}: {', '.join(test['failures'])}")
    return [*(f"- **{text(line)}**" for line in bad), ""] if bad else ["Nothing wrong was found.", ""]


def texts(records):
    lines = []
    for record in last_of(records, "facts", lambda _: None):
        lines += ["## Machine", "", "```text", record["text"].rstrip(), "```", ""]
    for record in last_of(records, "selftest", place):
        lines += [f"## Self-test on {place(record)[0]}", ""]
        lines += [text(why(record)), ""] if record.get("error") else []
        lines += ["```text", record["text"].rstrip(), "```", ""]
    return lines


def tests(records):
    rows = []
    for test in last_of(records, "tests", lambda test: test["name"]):
        failures = ", ".join(test.get("failures", []))
        rows.append([
            test["name"], show(test.get("passed")), show(test.get("failed")),
            show(test.get("ignored")), show(test.get("seconds")),
            "; ".join(test.get("adapters", [])) or "-",
            "; ".join(filter(None, [test.get("error"), failures])) or "-",
        ])
    head = ["tests", "passed", "failed", "ignored", "s", "adapters opened", "what failed"]
    return section("Tests", head, rows)


def training(records):
    rows = []
    for run in last_of(records, "train", place):
        if "events" not in run:
            rows.append([*place(run), *["-"] * 9, run["error"]])
            continue
        steps = [event for event in run["events"] if event["event"] == "step"]
        # The first step includes compilation.
        fastest = min(steps[1:], key=lambda step: step["ms"], default={})
        start = next((event for event in run["events"] if event["event"] == "start"), {})
        rows.append([
            *place(run), run["iters"], show(start.get("params")), show(run["first_loss"], 4),
            show(run["last_loss"], 4), show(start.get("entropy_floor"), 4),
            "yes" if run["fell"] else "**no**", show(fastest.get("ms"), 1),
            show(fastest.get("tokens_per_s")), show(run["seconds"]), run.get("error", "-"),
        ])
    head = ["device", "dtype", "iterations", "parameters", "loss before", "after", "entropy", "fell",
            "ms/iteration", "tokens/s", "total s", "error"]
    return section("Training", head, rows)


def losses(records):
    rows = []
    for pair in last_of(records, "losses", place):
        rows.append([
            *place(pair), pair["with"], pair["compared"],
            f"{pair['before']:.2g}", f"{pair['before_allowed']:.2g}",
            f"{pair['after']:.2g}", f"{pair['after_allowed']:.2g}",
            "yes" if pair["close"] else "**no**",
        ])
    head = ["device", "dtype", f"compared with, in {FLOAT32}", "losses", "difference before the first update",
            "allowed", "difference after", "allowed", "close enough"]
    lines = ["The same seed, data and dropout. Differences are the largest relative ones. They come "
             "from rounding, which updates amplify.", ""]
    return section("Losses", head, rows) + (lines if rows else [])


def peaks(records):
    rows = []
    for record in records:
        report = record.get("report")
        if report and report["peaks"]:
            what = record["part"] + (f", batch {record['batch']}" if "batch" in record else "")
            rows.append([place(record)[0], what, show(report["peaks"]["copy_gb_per_s"], 1),
                         show(report["peaks"]["multiply_add_gflop_per_s"])])
    return section("Peaks", ["device", "measured before", "copy GB/s", "multiply-add GFLOP/s"], rows)


def kernels(records):
    rows, lines = [], []
    for record in last_of(records, "kernels", place):
        device, dtype = place(record)
        if record.get("error"):
            stderr = record.get("stderr", "")
            lines += [f"kernels on {device} in {dtype}: {text(record['error'])}: {text(stderr)}", ""]
        for k in (record["report"] or {"kernels": []})["kernels"]:
            rows.append([
                device, dtype, k["name"], k["size"], show(k["ms"], 3), show(k["gb_per_s"], 1),
                show(k["gflop_per_s"], 1), percent(k["fraction"]), show(k["stock_ms"], 3),
                ratio(k["stock_ms"], k["ms"], 1),
            ])
    head = ["device", "dtype", "kernel", "size", "ms", "GB/s", "GFLOP/s", "of peak", "stock ms", "stock / this"]
    return section("Kernels", head, rows) + lines


def predicted(plan):
    return next((plan[key] for key in PREDICTED if key in plan), None) if plan else None


def why(record):
    """Returns the recorded reason, else the exit code with the last line of stderr before the hint."""
    if not record["error"].startswith("exit code"):
        return record["error"]
    lines = [line for line in record.get("stderr", "").splitlines() if not line.startswith("  hint:")]
    return ": ".join([record["error"], *lines[-1:]])


def measured_steps(records):
    key = lambda record: (*place(record), record["batch"], record["compare"], record.get("gentle", False))
    return last_of(records, "steps", key)


def dtype_of(record, step):
    """Returns the dtype of a step, marked if another than float32 was requested and not confirmed."""
    requested = place(record)[1]
    return step.get("dtype", FLOAT32 if requested == FLOAT32 else f"{requested}?")


def steps(records):
    measured = measured_steps(records)
    plans = any(predicted(record.get("plan")) for record in measured)
    rows = []
    for record in measured:
        device, dtype = place(record)
        forecast = [mebibytes(predicted(record.get("plan")))] if plans else []
        for step in (record["report"] or {"steps": []})["steps"]:
            rows.append([
                device, dtype_of(record, step), step["ops"],
                f"{step['micro_batch']} x {step['block_size']}",
                show(step["parameters"]), show(step["tokens_per_s"]), show(step["ms"], 1),
                show(step["gflop_per_s"]), percent(step["fraction"]),
                mebibytes(step["peak_bytes"]), *forecast, step["launches"],
                show(step["first_ms"]), "next to stock" if record["compare"] else
                "alone, gentle" if record.get("gentle") else "alone",
            ])
        if record.get("error"):
            blank = ["-"] * 6 + forecast + ["-"] * 2
            batch = record["batch"] or "-"
            rows.append([device, dtype, "-", batch, *blank, why(record)])
    head = ["device", "dtype", "ops", "micro-batch", "parameters", "tokens/s", "ms", "GFLOP/s",
            "of peak", "peak MiB", *(["predicted MiB"] if plans else []), "launches",
            "first step ms", "run"]
    return section("Steps", head, rows)


def launches(records):
    """The kernels of the smallest step of each device and dtype, without the shortest."""
    seen, rows = set(), []
    for record in measured_steps(records):
        device, dtype = place(record)
        for step in (record["report"] or {"steps": []})["steps"]:
            found = step.get("kernels", [])
            if not found or (device, dtype) in seen:
                continue
            seen.add((device, dtype))
            whole = sum(kernel["ms"] for kernel in found)
            for kernel in found:
                if kernel["ms"] >= 0.01 * whole:
                    rows.append([device, dtype, kernel["name"], kernel["launches"],
                                 show(kernel["ms"], 2), percent(kernel["ms"] / whole)])
    head = ["device", "dtype", "kernel and workgroups", "launches", "ms", "share"]
    return section("Kernels of a step", head, rows)


def torch(records):
    ours, devices = {}, []
    for record in measured_steps(records):
        for step in (record["report"] or {"steps": []})["steps"]:
            # Stock steps do not count. A step next to one shares its memory, so others take precedence.
            key = (place(record)[0], dtype_of(record, step), record["batch"])
            is_other = record["compare"] or record.get("gentle")
            if step["ops"] != "reference" and not (is_other and key in ours):
                ours[key] = step["tokens_per_s"]
                if key[0] not in devices:
                    devices.append(key[0])
    found = [record for record in records if record["part"] == "torch"]
    key = lambda record: tuple(record["row"][key] for key in ("dtype", "compile", "micro_batch"))
    rows = []
    for record in last_of([record for record in found if "row" in record], "torch", key):
        r = record["row"]
        # Compared with the same dtype if it was measured, else with float32.
        ratios = []
        for device in devices:
            same, other = ((device, d, r["micro_batch"]) for d in (r["dtype"], FLOAT32))
            shown = ratio(ours.get(same, ours.get(other)), r.get("tokens_per_s"))
            ratios.append(shown if same in ours or shown == "-" else f"{shown} ({FLOAT32})")
        rows.append([
            r["dtype"], "compiled" if r["compile"] else "eager", r["micro_batch"],
            show(r.get("ms"), 1), show(r.get("tokens_per_s")), mebibytes(r.get("peak_bytes")),
            show(r.get("first_ms")), *ratios, r.get("error", "-"),
        ])
    head = ["dtype", "mode", "micro-batch", "ms", "tokens/s", "peak MiB", "first step ms",
            *(f"{device} / torch" for device in devices), "error"]
    errors = [f"PyTorch: {text(record['error'])}" for record in found if "error" in record]
    return section("PyTorch", head, rows) + (errors[-1:] + [""] if errors else [])


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    target, *others = map(Path, sys.argv[1:])
    if others:
        records = merge(target, others)
    else:
        records = load(target)
    parts = [verdict, calls, texts, training, losses, peaks, kernels, steps, launches, tests, torch]
    lines = ["# GPU check", ""] + [line for part in parts for line in part(records)]
    records = (target / NAME).read_text(encoding="utf-8", errors="replace").rstrip()
    lines += ["## Records", "", "```json", records, "```"]
    (target / "gpu-check.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(target / "gpu-check.md")


if __name__ == "__main__":
    main()

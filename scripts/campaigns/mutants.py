"""Damages files that wgpt reads, and reads them."""

import json
import shutil

from .campaign import CODES, SMALL


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
    """Removes what the commands write."""
    for made in ("out", "a.gguf", "page.html"):
        path = folder / made
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def attack(campaign, count):
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

"""The files that the mutants damage, by family, and the commands that read them. wgpt writes GGUF files, but reads none."""

import gzip
import json
import pathlib
import shutil
import zipfile
from typing import NamedTuple

from . import damage
from .campaign import SMALL

REFERENCE = pathlib.Path(__file__).parents[2] / "tests/reference"

CHAT_ML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
           "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

# The words of Qwen 2.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SAMPLE = ["sample", "--device=cpu", "--max-new-tokens=4", "--seed=1"]
RESUME = ["train", "--resume", "--device=cpu", "--max_iters=22"]


class Command(NamedTuple):
    args: list
    # What it may write in the working folder.
    writes: list = []
    stdin: bytes = b""


class Target(NamedTuple):
    """A file to damage, the ways to do so, and the commands that read it."""

    family: str
    path: str
    damages: list
    commands: list


def prepare(*args):
    return Command(["prepare", *args, "-o", "out", "--force"], ["out"])


def sample(model):
    return Command([*SAMPLE, model])


def evaluate(model, data="data"):
    return Command(["eval", model, f"--data={data}", "--device=cpu", "--windows=5"])


def resume(run):
    return Command([*RESUME, f"--run={run}"], [run])


def export(model):
    return Command(["export", model, "-o", "a.gguf"], ["a.gguf"])


def chat(model):
    return Command(["chat", model, "--device=cpu", "--max-new-tokens=4", "--seed=1"], stdin=b"Hi\n\n")


def write_inputs(work):
    """Writes the files that do not come from wgpt."""
    text = "It was a dark night. " * 2000
    (work / "text.txt").write_text(text)
    (work / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    shutil.copy(REFERENCE / "texts.txt.zst", work / "text.txt.zst")
    shutil.copy(REFERENCE / "texts.parquet", work / "texts.parquet")
    shutil.copy(REFERENCE / "nanogpt_ckpt.pt", work / "ckpt.pt")
    shutil.copy(REFERENCE / "old_ckpt.pt", work / "old_ckpt.pt")
    rows = "".join(f'{i};"Story {i}: ""it"" was;\na dark night."\r\n' for i in range(200))
    (work / "table.csv").write_text("id;text\r\n" + rows, newline="")
    documents = "".join(json.dumps({"text": f"Story {i}: it was a dark night.", "id": i}) + "\n" for i in range(200))
    (work / "documents.jsonl").write_text(documents)
    (work / "documents.jsonl.gz").write_bytes(gzip.compress(documents.encode()))
    chats = [{"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": "Yes."}]} for i in range(200)]
    (work / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    questions = [{"ctx": f"It was a {i}", "endings": ["dark night.", "was.", "night dark.", "a a"], "label": 0} for i in range(6)]
    (work / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (work / "config.py").write_text("n_layer = 2\nn_head = 2\nn_embd = 32 # small\nbatch_size = 4\ndataset = 'x'\n")
    (work / "config.toml").write_text("n_layer = 2\nn_head = 2\nn_embd = 32\nbatch_size = 4\nlearning_rate = 1e-3\n")


def write_chat_tokenizer(work):
    """Makes a tokenizer like that of Qwen from one of byte pairs, with its chat template."""
    file = json.loads((work / "model/tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, last]}
    file["normalizer"] = {"type": "NFC"}
    first = len(file["model"]["vocab"])
    for id, name in enumerate(["<|im_start|>", "<|im_end|>"], first):
        token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        file["added_tokens"].append({"id": id, "content": name, **token})
    folder = work / "chatml"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_ML}))


def write_shards(work):
    """Copies the folder `llama` with its weights in two files and an index."""
    shutil.copytree(work / "llama", work / "shards")
    whole = work / "shards/model.safetensors"
    content = whole.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, values = json.loads(content[8:8 + length]), content[8 + length:]
    header.pop("__metadata__", None)
    names = sorted(header)
    index = {}
    for number, part in enumerate([names[:len(names) // 2], names[len(names) // 2:]], 1):
        file = f"model-{number:05}-of-00002.safetensors"
        tensors, body = {}, b""
        for name in part:
            first, last = header[name]["data_offsets"]
            tensors[name] = {**header[name], "data_offsets": [len(body), len(body) + last - first]}
            body += values[first:last]
            index[name] = file
        text = json.dumps(tensors).encode()
        (work / "shards" / file).write_bytes(len(text).to_bytes(8, "little") + text + body)
    whole.unlink()
    (work / "shards/model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": len(values)}, "weight_map": index}))


def write_zip(work):
    with zipfile.ZipFile(work / "model.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted((work / "model").iterdir()):
            if path.is_file():
                file.write(path, path.name)


def make_files(campaign):
    """Makes the files to damage. Returns false if a command failed."""
    work = campaign.work
    write_inputs(work)
    few = ["--max_iters=20", "--lr_decay_iters=20", "--keep_checkpoints=2"]
    llama = ["--arch=llama", "--bias=false", "--max_iters=2", "--warmup_iters=0", "--lr_decay_iters=2"]
    train = ["train", "--device=cpu", *SMALL]
    for args in (
        ["prepare", "text.txt", "-o", "data", "--tokenizer=bpe:300"],
        ["prepare", "text.txt", "-o", "letters", "--tokenizer=char"],
        [*train, "--data=data", *few, "--run=run"],
        ["export", "run", "-o", "model"],
        [*train, "--data=letters", *llama, "--run=letters-run"],
        ["export", "letters-run", "-o", "letters-model"],
        write_chat_tokenizer,
        ["prepare", "chats.jsonl", "-o", "chats", "--tokenizer=chatml"],
        [*train, "--data=chats", *llama, "--run=llama-run"],
        ["export", "llama-run", "-o", "llama"],
        ["import", "ckpt.pt", "-o", "imported"],
        ["sweep", "--device=cpu", *SMALL, "--data=data", "--max_iters=2", "--learning_rate=1e-3,3e-3", "-o", "sweep"],
        write_shards,
        write_zip,
    ):
        if callable(args):
            args(work)
            continue
        ended = campaign.run(*args)
        if ended.code != 0:
            campaign.finding(f"{' '.join(args)} {ended}")
            return False
    return True


def archive_of_torch(rng, content):
    return damage.archive(rng, content, lambda name: damage.pickle if name.endswith(".pkl") and rng.randrange(9) else damage.raw)


def archive_of_model(rng, content):
    def damages(name):
        if name.endswith(".safetensors"):
            return damage.safetensors
        return damage.structured_json if name.endswith(".json") else damage.raw
    return damage.archive(rng, content, damages)


def model_targets():
    """Returns the targets of models and of what describes them."""
    raw, values, tokenizer = damage.raw, damage.structured_json, [damage.tokenizer] * 3 + [damage.raw]
    tensors = [damage.safetensors, damage.safetensors, raw]
    setting, shard = damage.template_setting, "shards/model-00001-of-00002.safetensors"
    return [
        ("tokenizer", "chatml/tokenizer.json", tokenizer,
         [prepare("text.txt", "--tokenizer=chatml/tokenizer.json"), prepare("chats.jsonl", "--tokenizer=chatml")]),
        ("tokenizer", "model/tokenizer.json", tokenizer, [sample("model"), export("model")]),
        ("tokenizer", "letters-model/tokenizer.json", tokenizer, [sample("letters-model"), export("letters-model")]),
        ("tokenizer", "llama/tokenizer.json", tokenizer, [chat("llama"), export("llama")]),
        ("chat template", "chatml/tokenizer_config.json", [setting] * 4 + [raw], [prepare("chats.jsonl", "--tokenizer=chatml")]),
        ("chat template", "llama/chat_template.jinja", [damage.template_file], [chat("llama")]),
        ("chat template", "llama/tokenizer_config.json", [setting, values], [chat("llama"), export("llama")]),
        ("model folder", "model/config.json", [values, values, raw], [sample("model"), export("model")]),
        ("model folder", "model/generation_config.json", [values, raw], [sample("model")]),
        ("model folder", "llama/config.json", [values, values, raw], [sample("llama"), export("llama")]),
        ("model folder", "imported/config.json", [values, raw], [evaluate("imported", "letters")]),
        ("safetensors", "model/model.safetensors", tensors, [sample("model"), export("model")]),
        ("safetensors", "llama/model.safetensors", tensors, [sample("llama"), export("llama")]),
        ("safetensors", shard, tensors, [sample("shards")]),
        ("safetensors", "shards/model.safetensors.index.json", [values, values, raw], [sample("shards"), export("shards")]),
        ("nanoGPT", "ckpt.pt", [archive_of_torch] * 4 + [raw],
         [evaluate("ckpt.pt", "letters"), Command(["import", "ckpt.pt", "-o", "out"], ["out"])]),
        ("nanoGPT", "old_ckpt.pt", [raw], [Command(["import", "old_ckpt.pt", "-o", "out"], ["out"])]),
        ("zip", "model.zip", [archive_of_model] * 4 + [raw], [sample("model.zip")]),
    ]


def text_targets():
    """Returns the targets of texts and of prepared data."""
    raw, lines, rows = damage.raw, damage.lines, damage.json_lines
    questions = Command(["eval", "model", "--hellaswag=questions.jsonl", "--device=cpu"])
    return [
        ("text", "text.txt", [raw, lines], [prepare("text.txt", "--tokenizer=bpe:300")]),
        ("text", "text.txt", [raw],
         [prepare("text.txt", "--encoding=utf-16le"), prepare("text.txt", "--encoding=gbk")]),
        ("text", "documents.jsonl", [rows, raw, lines],
         [prepare("documents.jsonl"), prepare("documents.jsonl", "--skip-bad-lines")]),
        ("text", "table.csv", [raw, lines], [prepare("table.csv"), prepare("table.csv", "--skip-bad-lines")]),
        ("conversations", "chats.jsonl", [rows, rows, raw, lines],
         [prepare("chats.jsonl", "--tokenizer=byte"), prepare("chats.jsonl", "--tokenizer=chatml")]),
        ("questions", "questions.jsonl", [rows, raw, lines], [questions]),
        ("compressed text", "text.txt.gz", [raw, damage.gzipped(raw)], [prepare("text.txt.gz")]),
        ("compressed text", "documents.jsonl.gz", [raw, damage.gzipped(rows), damage.gzipped(raw)],
         [prepare("documents.jsonl.gz")]),
        ("compressed text", "text.txt.zst", [raw, damage.zstandard, damage.zstandard], [prepare("text.txt.zst")]),
        *(("Parquet", "texts.parquet", [damage.parquet] * 4 + [raw], [prepare("texts.parquet", f"--text-field={column}")])
          for column in ("plain", "snappy", "gzip", "lz4", "zstd")),
        ("data folder", "data/meta.json", [damage.structured_json, raw],
         [Command(["plan", "--data=data", "--preset=demo"]), evaluate("model")]),
        ("data folder", "data/train.bin", [damage.tokens, raw], [resume("run")]),
        ("data folder", "data/val.bin", [damage.tokens, raw], [evaluate("model")]),
    ]


def run_targets(checkpoint):
    """Returns the targets of settings, runs and sweeps."""
    raw, lines, values, rows = damage.raw, damage.lines, damage.structured_json, damage.json_lines
    tensors = [damage.safetensors, damage.safetensors, raw]
    reports = [Command(["runs", "."]), Command(["report", "run", "-o", "page.html"], ["page.html"]),
               Command(["compare", "run", "llama-run"])]
    return [
        ("settings", "config.py", [raw, lines], [Command(["plan", "config.py", "--target=8GiB"])]),
        ("settings", "config.toml", [raw, lines],
         [Command(["config", "check", "config.toml"]), Command(["plan", "config.toml", "--target=8GiB"])]),
        ("run", "run/config.toml", [raw, lines], [*reports, resume("run")]),
        ("run", "run/events.jsonl", [rows, rows, raw, lines], reports),
        ("run", f"{checkpoint}/state.json", [values, raw], [sample("run"), resume("run")]),
        ("run", f"{checkpoint}/config.json", [values, raw], [sample("run"), resume("run")]),
        ("run", f"{checkpoint}/model.safetensors", tensors, [sample("run"), resume("run")]),
        ("run", f"{checkpoint}/optimizer.safetensors", tensors, [resume("run")]),
        ("run", f"{checkpoint}/tokenizer.json", [damage.tokenizer, raw], [sample("run"), export("run")]),
        ("run", "sweep/sweep.json", [values, raw], [Command(["compare", "sweep"]), Command(["runs", "sweep"])]),
    ]


def targets(work):
    """Returns the files to damage, by family."""
    checkpoint = max(path.relative_to(work).as_posix() for path in (work / "run/checkpoints").iterdir())
    by_family = {}
    for target in (*text_targets(), *run_targets(checkpoint), *model_targets()):
        by_family.setdefault(target[0], []).append(Target(*target))
    return by_family

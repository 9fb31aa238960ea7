"""Damages files that wgpt reads, and reads them. It reads no GGUF files: it only writes them."""

import gzip
import json
import pathlib
import resource
import shutil
import sys
import zipfile
from typing import NamedTuple

from . import damage, watch
from .campaign import CACHE, CODES, SMALL
from .hub import COMMIT, Answer, Hub, listing, ok

# The memory that a command may take, in bytes. The files that it reads are small.
MEMORY = 4 << 30

# The time that a command may take. A whole file takes less than a second.
SECONDS = 120

REFERENCE = pathlib.Path(__file__).parents[2] / "tests/reference"

CHAT_ML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
           "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

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


def targets(work):
    """Returns the files to damage, by family."""
    raw, lines, values, rows = damage.raw, damage.lines, damage.structured_json, damage.json_lines
    tensors = [damage.safetensors, damage.safetensors, raw]
    checkpoint = max(path.relative_to(work).as_posix() for path in (work / "run/checkpoints").iterdir())
    reports = [Command(["runs", "."]), Command(["report", "run", "-o", "page.html"], ["page.html"]),
               Command(["compare", "run", "llama-run"])]
    found = [
        ("text", "text.txt", [raw, lines], [prepare("text.txt", "--tokenizer=bpe:300")]),
        ("text", "text.txt", [raw], [prepare("text.txt", "--encoding=utf-16le"), prepare("text.txt", "--encoding=gbk")]),
        ("text", "documents.jsonl", [rows, raw, lines], [prepare("documents.jsonl"), prepare("documents.jsonl", "--skip-bad-lines")]),
        ("conversations", "chats.jsonl", [rows, rows, raw, lines], [prepare("chats.jsonl", "--tokenizer=byte"), prepare("chats.jsonl", "--tokenizer=chatml")]),
        ("questions", "questions.jsonl", [rows, raw, lines], [Command(["eval", "model", "--hellaswag=questions.jsonl", "--device=cpu"])]),
        ("compressed text", "text.txt.gz", [raw, damage.gzipped(raw)], [prepare("text.txt.gz")]),
        ("compressed text", "documents.jsonl.gz", [raw, damage.gzipped(rows), damage.gzipped(raw)], [prepare("documents.jsonl.gz")]),
        ("compressed text", "text.txt.zst", [raw, damage.zstandard, damage.zstandard], [prepare("text.txt.zst")]),
        *(("Parquet", "texts.parquet", [damage.parquet] * 4 + [raw], [prepare("texts.parquet", f"--text-field={column}")])
          for column in ("plain", "snappy", "gzip", "lz4", "zstd")),
        ("settings", "config.py", [raw, lines], [Command(["plan", "config.py", "--target=8GiB"])]),
        ("settings", "config.toml", [raw, lines], [Command(["config", "check", "config.toml"]), Command(["plan", "config.toml", "--target=8GiB"])]),
        ("data folder", "data/meta.json", [values, raw], [Command(["plan", "--data=data", "--preset=demo"]), evaluate("model")]),
        ("data folder", "data/train.bin", [damage.tokens, raw], [resume("run")]),
        ("data folder", "data/val.bin", [damage.tokens, raw], [evaluate("model")]),
        ("run", "run/config.toml", [raw, lines], [*reports, resume("run")]),
        ("run", "run/events.jsonl", [rows, rows, raw, lines], reports),
        ("run", f"{checkpoint}/state.json", [values, raw], [sample("run"), resume("run")]),
        ("run", f"{checkpoint}/config.json", [values, raw], [sample("run"), resume("run")]),
        ("run", f"{checkpoint}/model.safetensors", tensors, [sample("run"), resume("run")]),
        ("run", f"{checkpoint}/optimizer.safetensors", tensors, [resume("run")]),
        ("run", f"{checkpoint}/tokenizer.json", [damage.tokenizer, raw], [sample("run"), export("run")]),
        ("run", "sweep/sweep.json", [values, raw], [Command(["compare", "sweep"]), Command(["runs", "sweep"])]),
        ("tokenizer", "chatml/tokenizer.json", [damage.tokenizer] * 3 + [raw], [prepare("text.txt", "--tokenizer=chatml/tokenizer.json"), prepare("chats.jsonl", "--tokenizer=chatml")]),
        ("tokenizer", "model/tokenizer.json", [damage.tokenizer] * 3 + [raw], [sample("model"), export("model")]),
        ("tokenizer", "letters-model/tokenizer.json", [damage.tokenizer] * 3 + [raw], [sample("letters-model"), export("letters-model")]),
        ("tokenizer", "llama/tokenizer.json", [damage.tokenizer] * 3 + [raw], [chat("llama"), export("llama")]),
        ("chat template", "chatml/tokenizer_config.json", [damage.template_setting] * 4 + [raw], [prepare("chats.jsonl", "--tokenizer=chatml")]),
        ("chat template", "llama/chat_template.jinja", [damage.template_file], [chat("llama")]),
        ("chat template", "llama/tokenizer_config.json", [damage.template_setting, values], [chat("llama"), export("llama")]),
        ("model folder", "model/config.json", [values, values, raw], [sample("model"), export("model")]),
        ("model folder", "model/generation_config.json", [values, raw], [sample("model")]),
        ("model folder", "llama/config.json", [values, values, raw], [sample("llama"), export("llama")]),
        ("model folder", "imported/config.json", [values, raw], [evaluate("imported", "letters")]),
        ("safetensors", "model/model.safetensors", tensors, [sample("model"), export("model")]),
        ("safetensors", "llama/model.safetensors", tensors, [sample("llama"), export("llama")]),
        ("safetensors", "shards/model-00001-of-00002.safetensors", tensors, [sample("shards")]),
        ("safetensors", "shards/model.safetensors.index.json", [values, values, raw], [sample("shards"), export("shards")]),
        ("nanoGPT", "ckpt.pt", [archive_of_torch] * 4 + [raw], [evaluate("ckpt.pt", "letters"), Command(["import", "ckpt.pt", "-o", "out"], ["out"])]),
        ("zip", "model.zip", [archive_of_model] * 4 + [raw], [sample("model.zip")]),
    ]
    return [Target(*target) for target in found]


def archive_of_torch(rng, content):
    return damage.archive(rng, content, lambda name: damage.pickle if name.endswith(".pkl") and rng.randrange(9) else damage.raw)


def archive_of_model(rng, content):
    def damages(name):
        if name.endswith(".safetensors"):
            return damage.safetensors
        return damage.structured_json if name.endswith(".json") else damage.raw
    return damage.archive(rng, content, damages)


def mutate(campaign, target):
    """Damages the file of a target, or removes it. Returns a word for it."""
    path = campaign.work / target.path
    if campaign.random.randrange(100) == 0:
        path.unlink()
        return "without the file"
    path.write_bytes(campaign.random.choice(target.damages)(campaign.random, path.read_bytes()))
    return "damaged"


def judge(command, ended):
    """Returns what is wrong with the end of a command, or None."""
    if ended.code is None:
        return f"did not end in {SECONDS} s"
    if ended.code not in CODES or "this is a bug in wgpt" in ended.err:
        return "is not a code for a bad file"
    if ended.code == 1 and "memory" in ended.err:
        return f"wanted more than {MEMORY >> 30} GiB"
    if ended.code and not ("error: " in ended.err and "hint: " in ended.err):
        return "refused it without an error and a hint"
    # Generated text has what the model has drawn.
    shown = ended.err if command.args[0] in ("sample", "chat") else ended.out + ended.err
    if any(ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 for c in shown):
        return "printed control characters"
    return None


class Bench:
    """Runs commands on damaged files, compares all files before and after, and makes them whole again."""

    def __init__(self, campaign):
        self.campaign = campaign
        self.original = campaign.folder / "original"
        shutil.copytree(campaign.work, self.original, symlinks=True)
        self.whole = watch.tree(campaign.folder)
        self.counts = {}
        self.number = 0

    def count(self, family, accepted):
        mutants = self.counts.setdefault(family, [0, 0, 0])
        mutants[0] += 1
        mutants[1 if accepted else 2] += 1

    def run(self, command, what, env=None):
        """Runs a command and finds what is wrong with its end, and what it has changed besides its output."""
        campaign = self.campaign
        before = watch.tree(campaign.folder)
        ended = campaign.run(*command.args, seconds=SECONDS, stdin=command.stdin, env=env)
        allowed = [CACHE, *(f"work/{path}" for path in command.writes)]
        changed = [path for path in watch.changes(before, watch.tree(campaign.folder))
                   if not any(path == write or path.startswith(f"{write}/") for write in allowed)]
        wrong = judge(command, ended)
        if changed:
            wrong = f"changed {', '.join(changed[:5])}"
        if wrong:
            kept = self.keep()
            campaign.finding(f"mutant {self.number}, {what}, kept in {kept}: `{' '.join(map(str, command.args))}` {wrong}: {ended}")
        return ended

    def keep(self):
        """Copies the working folder, as it is for a finding. Returns the copy."""
        kept = self.campaign.folder / f"mutant-{self.number}"
        if not kept.exists():
            shutil.copytree(self.campaign.work, kept, symlinks=True)
            self.campaign.asked.add(kept.name)
            # It is no output of a command.
            self.whole.update({path: entry for path, entry in watch.tree(self.campaign.folder).items() if path.split("/")[0] == kept.name})
        return kept

    def restore(self):
        """Makes all files whole."""
        for path in watch.changes(self.whole, watch.tree(self.campaign.folder)):
            if path == CACHE or not path.startswith(("work/", "tmp/", f"{CACHE}/huggingface")):
                continue
            at = self.campaign.folder / path
            if at.is_dir() and not at.is_symlink():
                if path not in self.whole:
                    shutil.rmtree(at)
                continue
            at.unlink(missing_ok=True)
            if path in self.whole:
                at.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.original / path.removeprefix("work/"), at)


def damage_file(bench, target):
    """Damages one file, and runs the commands that read it."""
    what = f"{target.path} {mutate(bench.campaign, target)}"
    codes = [bench.run(command, what).code for command in target.commands]
    bench.count(target.family, all(code == 0 for code in codes))


EVIL_NAMES = ["../../../../../home/.profile", "/tmp/x", "a/../../../x", "config.json/", "config.json\0", "x" * 5000, ".git/config", "CON", "",
              "a\\..\\b", "model.safetensors/../config.json", "\x1b[2J", "wgpt/../../x", "..", "."]


def lie(rng, files, name):
    """Returns a list of files in which one is not as it is served."""
    told = listing(name, files)
    file = rng.choice(told["siblings"])
    kind = rng.randrange(6)
    if kind == 0:
        file["rfilename"] = rng.choice(EVIL_NAMES)
    elif kind == 1:
        file["size"] = file.setdefault("lfs", {})["size"] = rng.choice([*damage.INTEGERS, None, "1"])
    elif kind == 2:
        file.setdefault("lfs", {})["sha256"] = rng.choice(["../x", "", "0" * 64, "x" * 64, None])
    elif kind == 3:
        told["sha"] = rng.choice(["../../x", "", None, "main", COMMIT.upper(), "x" * 9999])
    elif kind == 4:
        told["siblings"] *= rng.choice([2, 3000])
    else:
        return damage.structured_json(rng, json.dumps(told).encode())
    return json.dumps(told).encode()


def odd_answer(rng, hub, files):
    """Replaces the answer for a path."""
    path = rng.choice([path for path in hub.answers])
    whole = hub.answers[path]
    length = {"content-length": str(len(whole.body))}
    hub.answers[path] = rng.choice([
        Answer(401, {"content-length": "0"}, b""), Answer(403, {"content-length": "0"}, b""), Answer(404, {"content-length": "0"}, b""),
        Answer(204, {}, b""), Answer(206, {**length, "content-range": "bytes 5-9/7"}, whole.body), Answer(416, {"content-length": "0"}, b""),
        Answer(302, {"location": path, "content-length": "0"}, b""), Answer(302, {"location": "file:///etc/passwd", "content-length": "0"}, b""),
        Answer(302, {"location": "\x80 ://", "content-length": "0"}, b""), Answer(302, {"content-length": "0"}, b""),
        Answer(200, {**length, "content-encoding": "gzip"}, whole.body), Answer(200, {}, whole.body[:-1]), Answer(200, {}, whole.body * 2),
        Answer(200, {**length, "etag": "x" * 30000}, whole.body), Answer(999, length, whole.body), Answer(200, length, b"<html>" + whole.body[6:]),
    ])


def damage_hub(bench, hub, env):
    """Serves a repository that is damaged, fetches it and uses it."""
    rng, work = bench.campaign.random, bench.campaign.work
    if rng.randrange(3):
        kind, name, folder = "models", "me/tiny", rng.choice(["llama", "shards", "model"])
        files = {path.name: path.read_bytes() for path in (work / folder).iterdir() if path.is_file()}
        commands = [Command(["get", "hf:me/tiny"]), sample("hf:me/tiny")]
    else:
        kind, name = "datasets", "me/texts"
        files = {f"data/train-{i}.{ending}": (work / path).read_bytes()
                 for i, (path, ending) in enumerate([rng.choice([("texts.parquet", "parquet"), ("documents.jsonl", "jsonl"), ("text.txt", "txt")])] * 2)}
        column = ["--text-field=snappy"] if "data/train-0.parquet" in files else []
        commands = [Command(["get", "hf:me/texts"]), prepare("hf:me/texts", *column)]
    hub.answers.clear()
    how = rng.choice(["a list that lies", "a damaged file with its own hash", "a damaged file", "an odd answer"])
    if how == "a list that lies":
        hub.serve(kind, name, files, lie(rng, files, name))
    elif how == "an odd answer":
        hub.serve(kind, name, files)
        odd_answer(rng, hub, files)
    else:
        path = rng.choice(list(files))
        damages = {"safetensors": damage.safetensors, "json": damage.structured_json, "parquet": damage.parquet, "jinja": damage.template_file}
        changed = damages.get(path.rsplit(".")[-1], damage.raw)(rng, files[path])
        told = files if how == "a damaged file" else {**files, path: changed}
        hub.serve(kind, name, {**files, path: changed}, json.dumps(listing(name, told)).encode())
    codes = []
    for command in commands:
        codes.append(bench.run(command, f"the hub with {how}", env).code)
        if codes[-1] != 0:
            break
    bench.count("hub", all(code == 0 for code in codes))


def attack(campaign, count):
    """Damages files of each family in turn, and runs commands that read them. Each must end with a code of the contract,
    with an error and a hint if it refuses, and change nothing but its own output."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if not make_files(campaign):
        return
    campaign.asked.update({"work", "original"})
    bench = Bench(campaign)
    by_family = {}
    for target in targets(campaign.work):
        by_family.setdefault(target.family, []).append(target)
    # What refuses whole files tests nothing.
    for target in (target for family in by_family.values() for target in family):
        for command in target.commands:
            if bench.run(command, "whole files").code != 0:
                return campaign.finding(f"`{' '.join(command.args)}` refuses whole files")
        bench.restore()
    campaign.left_out("templates that add a list to itself again and again, for which minijinja 3.1 counts no fuel, so that nothing ends them")
    hub = Hub()
    families = [*by_family, "hub"]
    if campaign.options.family:
        if campaign.options.family not in families:
            sys.exit(f"error: no family {campaign.options.family!r}\n  hint: choose one of {', '.join(families)}")
        families = [campaign.options.family]
    for bench.number in range(1, count + 1):
        family = families[bench.number % len(families)]
        if family == "hub":
            damage_hub(bench, hub, {"HF_ENDPOINT": hub.address})
        else:
            damage_file(bench, campaign.random.choice(by_family[family]))
        bench.restore()
        campaign.progress(f"{bench.number} mutants")
    print(f"\n{'family':<16} mutants accepted refused")
    for family, (mutants, accepted, refused) in sorted(bench.counts.items()):
        print(f"{family:<16} {mutants:7} {accepted:8} {refused:7}")

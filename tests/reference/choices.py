"""Writes a file of questions in the form of HellaSwag, a small model, and PyTorch's scores of the endings.

    pip install torch numpy safetensors transformers
    python tests/reference/choices.py [FOLDER]     # default: the folder of this script

The questions are made from templates: a person does two things in an order that makes sense, and the wrong
endings come from other activities. The model reads bytes, is random, and is evaluated by transformers in float64
as GPT-2 commonly is: the mean loss of an ending's tokens after the context, with a space between them. Sequences
that are longer than the model's context keep their end. The loss of the model on the last tenth of the file, as text,
is measured too.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import GPT2Config, GPT2LMHeadModel

QUESTIONS = 200
VOCAB_SIZE, BLOCK_SIZE, N_LAYER, N_HEAD, N_EMBD = 257, 160, 2, 2, 16

END = "<|endoftext|>"

PEOPLE = ["A man", "A woman", "A boy", "A girl", "An old sailor", "A baker", "The teacher", "A young couple"]
PLACES = ["in a small kitchen", "behind the house", "at the edge of a lake", "in a quiet workshop", "on a roof",
          "in front of a mirror", "at a long wooden table", "under a large tree"]  # fmt: skip
# What is done first, and how it goes on.
ACTIVITIES = {
    "Baking bread": (
        ["kneads a ball of dough with both hands", "pours flour and warm water into a bowl",
         "takes a loaf out of a hot oven"],
        ["shapes the dough and covers it with a cloth.", "cuts a thick slice and spreads butter on it.",
         "dusts the table with flour and begins to roll."],
    ),
    "Repairing a bicycle": (
        ["turns a bicycle upside down", "takes the chain off a bicycle", "holds a flat tyre under water"],
        ["finds the hole and glues a patch over it.", "oils the chain and spins the pedals.",
         "tightens the wheel with a wrench and tests the brakes."],
    ),
    "Rowing": (
        ["carries a narrow boat to the water", "sits down in a boat and takes the oars", "pushes a boat off the shore"],
        ["pulls the oars in long, even strokes.", "glides past the reeds and looks over one shoulder.",
         "rows to the other side and ties the boat to a post."],
    ),
    "Painting a fence": (
        ["stirs a can of green paint", "scrapes the old paint off a fence", "lays a sheet of paper under a fence"],
        ["dips the brush and paints the first board.", "works along the boards from left to right.",
         "closes the can and washes the brush."],
    ),
    "Playing the violin": (
        ["opens a black case and lifts out a violin", "tunes the strings one after the other", "rubs rosin on a bow"],
        ["puts the violin under the chin and plays a slow tune.", "nods to the others and begins with a long note.",
         "bows to the audience and puts the violin away."],
    ),
    "Washing a dog": (
        ["lifts a muddy dog into a tub", "fills a tub with warm water while a dog watches", "calls a dog into the yard"],
        ["lathers the fur and rinses it with a hose.", "laughs as the dog shakes itself dry.",
         "rubs the dog with a large towel."],
    ),
    "Cutting hair": (
        ["sits down while another person holds scissors", "combs wet hair over the eyes", "ties a cape around the neck"],
        ["trims the ends and looks at both sides.", "shows the back of the head with a second mirror.",
         "brushes the hair off the shoulders."],
    ),
    "Planting a tree": (
        ["digs a deep hole in the lawn", "brings a young apple tree in a pot", "loosens the roots of a small tree"],
        ["sets the tree upright and fills in the soil.", "treads the earth down and pours a bucket of water on it.",
         "ties the thin trunk to a stake."],
    ),
}  # fmt: skip


def make_questions():
    draw = random.Random(21)
    names = list(ACTIVITIES)
    for index in range(QUESTIONS):
        activity = draw.choice(names)
        starts, ends = ACTIVITIES[activity]
        scene, start = f"{draw.choice(PEOPLE)} is {draw.choice(PLACES)}.", draw.choice(starts)
        person = draw.choice(["the person", "the camera shows how someone", "somebody else", "one of them"])
        others = draw.sample([name for name in names if name != activity], 3)
        endings = [draw.choice(ACTIVITIES[name][1]) for name in others]
        label = draw.randrange(4)
        endings.insert(label, draw.choice(ends))
        scene = f"{scene} Now {person} {start}."
        yield {
            "ind": index,
            "activity_label": activity,
            "ctx_a": scene,
            "ctx_b": "next, that person",
            "ctx": f"{scene} next, that person",
            "split": "val",
            "split_type": "indomain",
            "label": label,
            "endings": endings,
            "source_id": f"wgpt~{index}",
        }


def make_model(folder):
    torch.manual_seed(21)
    config = GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=BLOCK_SIZE, n_embd=N_EMBD, n_layer=N_LAYER, n_head=N_HEAD,
        bos_token_id=256, eos_token_id=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than at the start of a training, so that the scores differ.
            parameter.copy_((parameter + 0.15 * torch.randn_like(parameter)).float())
    model.save_pretrained(folder)
    return model.double()


def make_tokenizer(folder):
    """Writes the tokenizer of bytes as wgpt does, each byte as the character that stands for it in GPT-2's files."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (chr(code) for code in range(0x100, 0x200))
    vocab = {chr(byte) if byte in visible else next(hidden): byte for byte in range(256)}
    vocab[END] = VOCAB_SIZE - 1
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    file = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": VOCAB_SIZE - 1, "content": END, **flags, "special": True}],
        "normalizer": None, "pre_tokenizer": bytes_, "post_processor": None, "decoder": bytes_,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(file) + "\n")


def evaluate(model, text):
    """Returns the mean loss and the bits per byte on the last tenth of a text, in windows that follow each other."""
    tokens = [*text[int(len(text) * 0.9) :], VOCAB_SIZE - 1]
    starts = range(0, (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE)
    windows = torch.tensor([tokens[start : start + BLOCK_SIZE + 1] for start in starts])
    targets = windows[:, 1:].flatten()
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, targets).item()
    size = (targets < 256).sum().item()
    return loss, loss / np.log(2) * len(targets) / size


def score(model, question):
    context = list(question["ctx"].encode())
    losses = []
    for ending in question["endings"]:
        scored = list(f" {ending}".encode())
        tokens = (context + scored)[-(BLOCK_SIZE + 1) :]
        inputs, targets = torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:])
        with torch.no_grad():
            logits = model(inputs).logits[0]
        each = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        losses.append(each[-min(len(scored), len(tokens) - 1) :].mean().item())
    return losses


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    torch.set_num_threads(1)
    questions = list(make_questions())
    lines = [json.dumps(question) + "\n" for question in questions]
    (out / "choices.jsonl").write_text("".join(lines))
    folder = out / "choices_tiny"
    model = make_model(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    losses = np.array([score(model, question) for question in questions])
    make_tokenizer(folder)
    evaluated = evaluate(model, (out / "choices.jsonl").read_bytes())
    scores = {"losses": losses, "loss_and_bits_per_byte": np.array(evaluated)}
    scores = {name: values.astype(np.float32) for name, values in scores.items()}
    save_file(scores, out / "choices_scores.safetensors")
    labels = np.array([question["label"] for question in questions])
    sizes = [max(len(f"{q['ctx']} {e}".encode()) for e in q["endings"]) for q in questions]
    ordered = np.sort(losses, axis=1)
    print(f"loss {evaluated[0]:.4f}, {evaluated[1]:.4f} bits per byte")
    print(f"{(losses.argmin(1) == labels).sum()} of {len(questions)} right")
    print(f"{sum(size > BLOCK_SIZE + 1 for size in sizes)} longer than the context, the longest {max(sizes)} bytes")
    print(f"the two lowest losses of a question differ by at least {(ordered[:, 1] - ordered[:, 0]).min():.1e}")


if __name__ == "__main__":
    main()

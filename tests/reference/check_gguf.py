"""Checks that a GGUF file of `wgpt export` has the weights, the sizes and the tokenizer of a Hugging Face folder.

    pip install gguf torch transformers   # checked with 0.19.0, 2.15.0, 5.23.0
    python tests/reference/check_gguf.py FOLDER FILE.gguf

The file is read by llama.cpp's own package. Its tensors must be those of the folder, byte by byte in its type, and the
logits of the folder's model with the weights of the file must be those of the folder's model, within the type's
rounding. If the program `llama-tokenize` is in the path, it must tokenize as transformers does.
"""

import os
import shutil
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

# The largest difference of a logit, relative to the largest logit.
TOLERANCE = {"F32": 1e-6, "F16": 5e-3, "Q8_0": 5e-2}

PARTS = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
TEXTS = ["The fox looked at the moon.", " two  spaces, 3 numbers 42\n\n\tand a tab", "it's we'll"]


def hugging_face_name(name: str) -> str:
    part, kind = name.rsplit(".", 1)
    if part.startswith("blk."):
        _, block, part = part.split(".")
        return f"h.{block}.{PARTS[part]}.{kind}"
    return {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"}[part] + f".{kind}"


def value(reader, key):
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def check_tensors(reader, model) -> tuple[str, dict]:
    """Returns the type of the matrices, and the weights of the file by their names in Hugging Face's model."""
    state = {name: tensor for name, tensor in model.transformer.state_dict().items() if not name.endswith(".attn.bias")}
    found, kinds = {}, set()
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        want = model.transformer.state_dict()[name].numpy()
        if ".c_" in name and name.endswith("weight"):
            want = np.ascontiguousarray(want.T)
        kind = tensor.tensor_type
        is_matrix = want.ndim == 2 and not name.startswith("wpe")
        kinds |= {kind} if is_matrix else set()
        assert is_matrix or kind == gguf.GGMLQuantizationType.F32, f"{name} is {kind.name}"
        assert list(tensor.shape) == list(reversed(want.shape)), f"{name} has the shape {tensor.shape}"
        expected = gguf.quants.quantize(want, kind)
        assert np.array_equal(expected.view(np.uint8).ravel(), tensor.data.view(np.uint8).ravel()), name
        read = gguf.quants.dequantize(tensor.data, kind).reshape(want.shape)
        found[name] = torch.from_numpy(read.T.copy() if ".c_" in name and read.ndim == 2 else read.copy())
    assert sorted(found) == sorted(state), set(found) ^ set(state)
    names = sorted(kind.name for kind in kinds)
    # Rows that are no whole blocks are halves.
    assert len(names) == 1 or names == ["F16", "Q8_0"], names
    return names[-1], found


def check_tokens(reader, folder: str, path: str) -> None:
    tokens, kinds = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    assert len(tokens) == len(kinds)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    is_bytes = tokenizer.eos_token is not None
    letters = bytes_to_unicode()
    for token, id in tokenizer.get_vocab().items() if is_bytes else []:
        # llama.cpp wants bytes written as letters, also where the folder has characters.
        spelled = "".join(letters[byte] for byte in token.encode())
        assert tokens[id] in (token, spelled), f"token {id} is {tokens[id]!r}, not {token!r}"
    if is_bytes:
        assert value(reader, "tokenizer.ggml.eos_token_id") == tokenizer.eos_token_id
        assert kinds[tokenizer.eos_token_id] == gguf.TokenType.CONTROL
    program = shutil.which("llama-tokenize")
    for text in TEXTS if program and is_bytes else []:
        command = [program, "-m", path, "-p", text, "--ids", "--no-escape", "--log-disable"]
        made = eval(subprocess.run(command, check=True, capture_output=True).stdout)
        assert made == tokenizer.encode(text), f"llama.cpp makes {made} of {text!r}"
    print(f"{len(tokens)} tokens, tokenized by llama.cpp" if program else f"{len(tokens)} tokens")


def main(folder: str, path: str) -> None:
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    config = model.config
    reader = gguf.GGUFReader(path)
    sizes = {
        "context_length": config.n_positions, "embedding_length": config.n_embd, "block_count": config.n_layer,
        "attention.head_count": config.n_head, "feed_forward_length": 4 * config.n_embd,
    }  # fmt: skip
    assert value(reader, "general.architecture") == "gpt2"
    for key, size in sizes.items():
        assert value(reader, f"gpt2.{key}") == size, key
    assert len(value(reader, "tokenizer.ggml.tokens")) == config.vocab_size
    kind, weights = check_tensors(reader, model)
    check_tokens(reader, folder, path)

    torch.manual_seed(0)
    ids = torch.randint(config.vocab_size, (2, min(32, config.n_positions)))
    with torch.no_grad():
        want = model(ids).logits
        model.transformer.load_state_dict(weights, strict=False)
        model.tie_weights()
        off = ((model(ids).logits - want).abs().max() / want.abs().max()).item()
    assert off <= TOLERANCE[kind], f"a logit is off by {off:.1e}"
    print(f"{len(weights)} tensors, matrices in {kind}, logits within {off:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])

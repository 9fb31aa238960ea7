"""Writes small folders of models and of tokenizers in the forms that other programs write, with what transformers
makes of them.

    pip install torch numpy transformers safetensors   # made with 2.15.0, 2.4.6, 5.24.0, 0.8.0
    python tests/reference/foreign.py [FOLDER]         # default: the folder `foreign` next to this script

transformers computes the logits in float64. It reads each folder that it can read; a compiled model, whose names
it does not know, computes its own. Each tokenizer has `ids.json`: the ids of some texts, and those of its special
tokens.
"""

import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from llama import draw_weights
from make import check, gap, write_safetensors
from safetensors.torch import load_file, save_file, save_model
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

THETA = 300.0
TOKENS = torch.arange(16)[None] * 11 % 37


# --- models ----------------------------------------------------------------------------------------------------


def tiny(seed, kind=(LlamaConfig, LlamaForCausalLM), **changes):
    """Returns a model of one layer in float32, with heads of keys and values that queries share."""
    sizes = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 16}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": THETA}
    make_config, make_model = kind
    model = make_model(make_config(**{**sizes, "rope_parameters": rope, "tie_word_embeddings": True, **changes})).eval()
    fill(model, seed)
    return model


def fill(model, seed):
    weights = draw_weights(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def merged_head(folder):
    """An adapter with a head of its own is merged into a tied model: the config still says that it is tied."""
    model = tiny(1)
    model.lm_head.weight = torch.nn.Parameter(tiny(2).lm_head.weight.detach().clone())
    model.save_pretrained(folder)
    assert model.config.tie_word_embeddings and "lm_head.weight" in load_file(folder / "model.safetensors")
    return model


def only_head(folder):
    """safetensors writes a tensor of two names under the first of them."""
    model = tiny(3)
    model.config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"))
    names = load_file(folder / "model.safetensors")
    assert "lm_head.weight" in names and "model.embed_tokens.weight" not in names
    return model


def compiled(folder):
    model = tiny(4, tie_word_embeddings=False)
    model.config.save_pretrained(folder)
    weights = torch.compile(model).state_dict()
    assert all(name.startswith("_orig_mod.") for name in weights)
    save_file(weights, folder / "model.safetensors")
    return model


def bare(folder):
    """The model below the head is saved by itself."""
    model = tiny(5)
    model.model.save_pretrained(folder)
    assert "embed_tokens.weight" in load_file(folder / "model.safetensors")
    return model


def doubles(folder):
    model = tiny(6).double()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-9 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64))
    model.save_pretrained(folder)
    return model


def edit_config(folder, changes):
    """Changes what the configuration of a folder says, or removes it (`...`)."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}, indent=2) + "\n")


def theta_in_scaling(folder):
    model = tiny(7)
    model.save_pretrained(folder)
    edit_config(folder, {"rope_parameters": ..., "rope_scaling": {"type": "default", "rope_theta": THETA}})
    return model


def null_heads(folder):
    model = tiny(8, num_key_value_heads=4)
    model.save_pretrained(folder)
    edit_config(folder, {"num_key_value_heads": None})
    return model


def null_heads_of_qwen3(folder):
    """Without the key it would have 32 of them."""
    model = tiny(9, (Qwen3Config, Qwen3ForCausalLM), num_key_value_heads=4)
    model.save_pretrained(folder)
    edit_config(folder, {"num_key_value_heads": None})
    return model


def make_models(out):
    logits = {"tokens": TOKENS[0]}
    forms = [merged_head, only_head, compiled, bare, doubles, theta_in_scaling, null_heads, null_heads_of_qwen3]
    for write in forms:
        name = write.__name__
        folder = out / name
        folder.mkdir()
        with torch.no_grad():
            wanted = write(folder).double()(TOKENS).logits[0]
            if write is not compiled:
                read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
                check(f"{name} read back", gap(read(TOKENS).logits[0], wanted), 1e-12)
        (folder / "model.safetensors").chmod(0o644)
        (folder / "generation_config.json").unlink(missing_ok=True)
        logits[name] = wanted
    write_safetensors(out / "logits.safetensors", logits)


# --- tokenizers ------------------------------------------------------------------------------------------------

CORPUS = ["The fox runs over the hill and comes home. ", "She didn't see 1234 birds, but they'll sing; the hen, too!\n",
          "Where is the other one? It's there,  in the tree.\n\n", "fn main() {\n    let x = 10;\n}\n", "caf\u00e9 na\u00efve "]  # fmt: skip
TEXTS = ["The fox", " the hill\n\n  and home", "It's 12345 birds, they'LL sing...", "caf\u00e9 cafe\u0301 na\u00efve",
         "\u4f60\u597d \U0001f600\u200d\n", "\t\tx  =\r\n 1;   ", "\u00a0\u2003end", "<|im|> is none"]  # fmt: skip

# Llama 3's words.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip


def trained(specials, words):
    """Trains a tokenizer of bytes; `specials` get the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=290, initial_alphabet=sorted(alphabet)))
    tokenizer.add_special_tokens(specials)
    return tokenizer


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def settings(folder, **values):
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **values})


def own_specials(folder):
    """Tokens with names of their own."""
    tokenizer = trained(["[start]", "[stop]", "[fill]"], pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings(folder, bos_token="[start]", eos_token="[stop]", pad_token="[fill]")


def two_files(folder):
    """The same as the two files of GPT-2's form, before there was a tokenizer.json."""
    tokenizer = trained([], pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.model.save(str(folder))
    ids = json.loads((folder / "vocab.json").read_text())
    ids |= {token: len(ids) + at for at, token in enumerate(["[start]", "[stop]"])}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False))
    write(folder / "added_tokens.json", {"[fill]": len(ids)})
    write(folder / "special_tokens_map.json", {"bos_token": "[start]", "eos_token": "[stop]", "pad_token": "[fill]"})
    # A class of its own would have its own names for what the map leaves out.
    settings(folder, tokenizer_class="GPT2Tokenizer", unk_token="[stop]")


def processor(folder):
    """Like Llama 3: a post-processor begins each text, and generation stops at two tokens."""
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    words = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = trained(["<|begin|>", "<|end|>", "<|turn|>", "<|pad|>"], words)
    tokenizer.normalizer = normalizers.NFC()
    begin, end, turn = (tokenizer.token_to_id(token) for token in ["<|begin|>", "<|end|>", "<|turn|>"])
    begins = processors.TemplateProcessing("<|begin|> $A", "<|begin|> $A <|begin|> $B", [("<|begin|>", begin)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begins])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings(folder, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>")
    write(folder / "generation_config.json", {"bos_token_id": begin, "eos_token_id": [end, turn]})


def add_bos(folder):
    """A setting begins each text. transformers 5 ignores it next to a tokenizer.json."""
    two_files(folder)
    settings(folder, tokenizer_class="GPT2Tokenizer", unk_token="[stop]", add_bos_token=True)


def make_tokenizers(out):
    for write_folder in [own_specials, two_files, processor, add_bos]:
        folder = out / write_folder.__name__
        folder.mkdir()
        write_folder(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        stops = [tokenizer.eos_token_id]
        if (folder / "generation_config.json").exists():
            stops = GenerationConfig.from_pretrained(folder).eos_token_id
        texts = [[text, tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(text)] for text in TEXTS]
        roles = {role: tokenizer.convert_tokens_to_ids(token) for role, token in tokenizer.special_tokens_map.items()}
        roles.pop("unk_token", None)
        rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in texts)
        (folder / "ids.json").write_text(
            f'{{\n "roles": {json.dumps(roles)},\n "stops": {json.dumps(stops)},\n "texts": [\n{rows}\n ]\n}}\n')
        print(f"{folder.name}: {len(tokenizer)} tokens, {roles}, stops {stops}, {texts[0][1]} {texts[0][2]}")


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "foreign"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    make_models(out)
    make_tokenizers(out)


if __name__ == "__main__":
    main()

"""Checks with transformers that a folder written by `wgpt export` tokenizes and generates as wgpt does.

    pip install torch transformers   # checked with 2.15.0, 5.23.0
    python tests/reference/check_export.py FOLDER [WGPT]     # WGPT: the program, default `wgpt`
"""

import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 60


def main(folder: str, wgpt: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    size = model.config.vocab_size
    assert len(tokenizer) == size, f"{len(tokenizer)} tokens, the model has {size}"

    # The whole vocabulary there and back; bytes make text only as whole characters.
    ordinary = [id for id in range(size) if id not in tokenizer.added_tokens_decoder]
    is_chars = all(len(tokenizer.decode(id)) == 1 for id in ordinary)
    text = "".join(map(tokenizer.decode, ordinary)) if is_chars else "".join(map(chr, range(0xD800)))
    text += text[::-1] + "".join(2 * character for character in text)
    ids = tokenizer.encode(text)
    if is_chars:
        assert ids == [tokenizer.encode(character)[0] for character in text], "not the ids of the characters"
    if len(ordinary) == 256:
        assert ids == list(text.encode()), "not the bytes"
    assert tokenizer.decode(ids) == text, "the text does not read back"

    if tokenizer.chat_template:
        chat = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
        written = "<|endoftext|><|user|>a?<|end|><|assistant|>b<|end|>"
        assert tokenizer.apply_chat_template(chat, tokenize=False) == written
        assert tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True) == written[:-8]
        named = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
        begin, *roles, end = tokenizer.convert_tokens_to_ids(named)
        assert tokenizer.encode(written) == [begin, roles[1], *tokenizer.encode("a?"), end, roles[2],
                                             *tokenizer.encode("b"), end]  # fmt: skip
        print("the template has the tokens of conversations")

    for prompt in sys.argv[3:] or ["The fox", "\n", "a  b."]:
        ids = torch.tensor([tokenizer.encode(prompt)])
        room = model.config.max_position_embeddings - ids.shape[1]
        length = min(NEW_TOKENS, room)
        mask = torch.ones_like(ids)
        made = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=length, eos_token_id=None)
        made = tokenizer.decode(made[0])
        command = [wgpt, "sample", folder, "--device=cpu", f"--start={prompt}", "--temperature=0"]
        command += [f"--max-new-tokens={length}"]
        sampled = subprocess.run(command, check=True, capture_output=True).stdout.decode()
        sampled = sampled.removesuffix("\n---------------\n")
        assert made == sampled, f"transformers generates {made!r}, wgpt {sampled!r}"
        print(f"{prompt!r}: the same {length} tokens")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "wgpt")

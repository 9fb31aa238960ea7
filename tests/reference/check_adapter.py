"""Checks with PEFT that an adapter of wgpt is the same adapter there, and that wgpt merges it as PEFT does.

    pip install torch transformers peft   # checked with 2.15.0, 5.24.0, 0.21.2
    python tests/reference/check_adapter.py ADAPTER MERGED

ADAPTER is from `wgpt export RUN --format=peft`, or a checkpoint of an adapter; MERGED from `wgpt export RUN`.
"""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM


def main(adapter: str, merged: str) -> None:
    adapted = AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=torch.float32).eval()
    merged = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    config = merged.config
    length = min(64, config.max_position_embeddings)
    tokens = torch.randint(config.vocab_size, (4, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, of_merged = adapted(tokens).logits, merged(tokens).logits
        with adapted.disable_adapter():
            of_base = adapted(tokens).logits
    largest = logits.abs().max()
    off = ((logits - of_merged).abs().max() / largest).item()
    effect = ((logits - of_base).abs().max() / largest).item()
    assert off < 1e-5 and effect > 100 * off, (off, effect)
    print(f"PEFT and the merged model differ by {off:.1e} of the largest logit; the adapter changes {effect:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])

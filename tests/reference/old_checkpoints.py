"""Writes a small GPT-2 in the forms of PyTorch that nanoGPT and transformers do not write today.

    pip install torch numpy      # made with 2.15.0, 2.4.6
    python tests/reference/old_checkpoints.py [FOLDER]

old_ckpt.pt is nanoGPT's checkpoint in the format from before PyTorch 1.6, with linears [out, in]. bare_state.pt is
the same model as the state dict that transformers saved as pytorch_model.bin, with linears [in, out]. Value i of a
weight is the length of its name plus i / 64, counted in the order of [in, out].
"""

import pathlib
import sys
from collections import OrderedDict

import torch

N_HEAD, N_EMBD, BLOCK_SIZE, VOCAB_SIZE = 2, 8, 4, 16
SHAPES = {
    "wte.weight": [VOCAB_SIZE, N_EMBD],
    "wpe.weight": [BLOCK_SIZE, N_EMBD],
    "h.0.ln_1.weight": [N_EMBD],
    "h.0.ln_1.bias": [N_EMBD],
    "h.0.attn.c_attn.weight": [N_EMBD, 3 * N_EMBD],
    "h.0.attn.c_attn.bias": [3 * N_EMBD],
    "h.0.attn.c_proj.weight": [N_EMBD, N_EMBD],
    "h.0.attn.c_proj.bias": [N_EMBD],
    "h.0.ln_2.weight": [N_EMBD],
    "h.0.ln_2.bias": [N_EMBD],
    "h.0.mlp.c_fc.weight": [N_EMBD, 4 * N_EMBD],
    "h.0.mlp.c_fc.bias": [4 * N_EMBD],
    "h.0.mlp.c_proj.weight": [4 * N_EMBD, N_EMBD],
    "h.0.mlp.c_proj.bias": [N_EMBD],
    "ln_f.weight": [N_EMBD],
    "ln_f.bias": [N_EMBD],
}


def values(name, shape):
    count = torch.Size(shape).numel()
    return (len(name) + torch.arange(count, dtype=torch.float32) / 64).reshape(shape)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    weights = {name: values(name, shape) for name, shape in SHAPES.items()}
    bare = OrderedDict((f"transformer.{name}", weight) for name, weight in weights.items())
    bare["lm_head.weight"] = bare["transformer.wte.weight"]
    torch.save(bare, folder / "bare_state.pt")
    is_linear = lambda name: name.startswith("h.") and weights[name].dim() == 2
    model = OrderedDict((f"transformer.{n}", w.t().contiguous() if is_linear(n) else w) for n, w in weights.items())
    model["lm_head.weight"] = model["transformer.wte.weight"]
    args = dict(n_layer=1, n_head=N_HEAD, n_embd=N_EMBD, block_size=BLOCK_SIZE, bias=True, vocab_size=VOCAB_SIZE, dropout=0.0)
    checkpoint = {"model": model, "model_args": args, "iter_num": 3, "best_val_loss": torch.tensor(2.5), "config": {"eval_only": False}}
    torch.save(checkpoint, folder / "old_ckpt.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()

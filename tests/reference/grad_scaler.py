"""Trains a small GPT-2 with PyTorch in float32 and in float16 with a scaled loss, for tests/model.rs.

    pip install torch numpy transformers safetensors
    python tests/reference/grad_scaler.py [FOLDER]     # writes half_training.safetensors; README.md describes it

The float16 run uses torch.autocast and torch.amp.GradScaler as nanoGPT does, but scales the sum of the losses of
all tokens and divides the gradients by their number afterwards, as wgpt does: a division by half a million before
the backward pass would underflow in float16.
"""

import sys
from pathlib import Path

import make
import torch
from torch import nn

make.N_LAYER = 4
STEPS, OVERFLOW_STEP, OVERFLOW_SCALE = 300, 10, 2.0**30
LEARNING_RATE, GRAD_CLIP = 1e-3, 1.0
# Where the scale starts and returns to after the overflow. The gradients of weights, which PyTorch adds up in
# float16 and wgpt does not, fit at this scale in both.
SCALE = 64.0
VALIDATION_BATCHES = 16


def summed_loss(w, tokens, targets):
    logits = make.forward(w, tokens, "tanh").float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def validation_loss(w, tokens, targets, half):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=half):
        losses = [summed_loss(w, *batch).item() for batch in zip(tokens, targets)]
    return sum(losses) / targets.numel()


def train(weights, tokens, targets, half):
    """Returns the mean loss of each step, the scale that each began with, and whether each was skipped."""
    w = {name: value.float().clone().requires_grad_() for name, value in weights.items()}
    groups = [
        {"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": make.WEIGHT_DECAY},
        {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=make.BETAS, eps=make.ADAM_EPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=half)
    losses, scales, skipped = [], [], []
    for step in range(STEPS):
        if half and step in (OVERFLOW_STEP, OVERFLOW_STEP + 1):
            scaler.update(OVERFLOW_SCALE if step == OVERFLOW_STEP else SCALE)
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=half):
            loss = summed_loss(w, tokens[step], targets[step])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in w.values():
            p.grad /= targets[step].numel()
        nn.utils.clip_grad_norm_(w.values(), GRAD_CLIP)
        before = w["wpe.weight"].detach().clone()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(torch.equal(before, w["wpe.weight"]))
        losses.append(loss.item() / targets[step].numel())
    return w, losses, scales, skipped


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    torch.set_num_threads(1)
    weights = make.draw_weights(31, bias=True)
    tokens, targets = make.draw_batches(131, STEPS, make.BATCH)
    validation = make.draw_batches(231, VALIDATION_BATCHES, make.BATCH)
    tensors = {f"weight.{name}": value for name, value in weights.items()}
    tensors |= {"tokens": tokens, "targets": targets, "val_tokens": validation[0], "val_targets": validation[1]}
    for name, half in [("float32", False), ("float16", True)]:
        w, losses, scales, skipped = train(weights, tokens, targets, half)
        loss = validation_loss(w, *validation, half)
        tensors[f"{name}.losses"] = torch.tensor(losses)
        tensors[f"{name}.val_loss"] = torch.tensor([loss])
        skips = [step for step, skip in enumerate(skipped) if skip]
        if half:
            tensors["float16.skipped"] = torch.tensor(skips, dtype=torch.int32)
            assert skips == [OVERFLOW_STEP], skips
        print(f"{name}: {losses[0]:.4f} to {losses[-1]:.4f}, validation {loss:.4f}, skipped {skips}")
    a, b = tensors["float32.losses"], tensors["float16.losses"]
    print(f"largest difference of the losses: {((a - b).abs() / a).max().item():.2e}")
    make.write_safetensors(out / "half_training.safetensors", tensors)


if __name__ == "__main__":
    main()

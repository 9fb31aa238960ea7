"""Updates the matrices of a block with PyTorch's Muon, for tests/model/muon.rs.

    pip install torch numpy transformers safetensors
    python tests/reference/muon.py [FOLDER]     # writes muon.safetensors; README.md describes it

torch.optim.Muon orthogonalizes in bfloat16, whatever the dtype of its parameters: rounding errors of up to 2e-3 of
the weights hide what a test would look for. Here its module sees a `torch` whose bfloat16 is another dtype. The values
are computed in float64 from values that are exact in float32; float32, and PyTorch's own bfloat16, are compared with
them.
"""

import sys
from pathlib import Path

import make
import numpy as np
import torch
from torch import nn
from torch.optim import _muon

WIDTH, STEPS, GRADIENTS = 12, 20, 4
LAYERS = {
    "attn.c_attn": (WIDTH, 3 * WIDTH),
    "attn.c_proj": (WIDTH, WIDTH),
    "mlp.c_fc": (WIDTH, 4 * WIDTH),
    "mlp.c_proj": (4 * WIDTH, WIDTH),
}
SHAPES = {f"h.0.{layer}.weight": shape for layer, shape in LAYERS.items()}
LEARNING_RATES = [1e-2 * (step + 1) / 5 for step in range(5)] + [1e-2] * 10 + [1e-3] * 5
assert len(LEARNING_RATES) == STEPS
# The gradients of each step are multiplied by these: above 1 most are clipped, at 0 the momentum alone is left.
SCALES = [1.0, 4.0, 0.25, 1.0, 0.0] * 4
WEIGHT_DECAY, GRAD_CLIP = 0.1, 1.0


class TorchWith:
    """The module torch with another dtype in place of its bfloat16."""

    def __init__(self, bfloat16):
        self.bfloat16 = bfloat16

    def __getattr__(self, name):
        return getattr(torch, name)


def draw(rng, shape, std):
    return torch.from_numpy((std * rng.standard_normal(shape)).astype(np.float32)).double()


def draw_gradient(rng, shape):
    """Draws a gradient whose singular values differ by a factor of about 100, with a norm of about 1."""
    scales = torch.from_numpy(np.geomspace(1, 1e-2, shape[1]).astype(np.float32)).double()
    return (draw(rng, shape, 0.07) * scales).float().double()


def split(name, matrix):
    """The weights [out, in] of PyTorch's linear layers in a weight [in, out]: one, or three for q, k and v."""
    return [part.T.contiguous() for part in matrix.chunk(3 if "c_attn" in name else 1, dim=1)]


def join(parts):
    return torch.cat([part.T for part in parts], dim=1)


def train(weights, gradients, dtype, orthogonalized):
    """Returns the weights after each step, and the last momentum."""
    _muon.torch = TorchWith(orthogonalized)
    params = {name: [nn.Parameter(part.to(dtype)) for part in split(name, w)] for name, w in weights.items()}
    flat = [part for parts in params.values() for part in parts]
    optimizer = torch.optim.Muon(flat, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    steps = {name: [] for name in params}
    for step, (rate, scale) in enumerate(zip(LEARNING_RATES, SCALES)):
        optimizer.param_groups[0]["lr"] = rate
        for name, parts in params.items():
            for part, grad in zip(parts, split(name, gradients[name][step % GRADIENTS])):
                part.grad = (scale * grad).to(dtype)
        nn.utils.clip_grad_norm_(flat, GRAD_CLIP)
        optimizer.step()
        for name, parts in params.items():
            steps[name].append(join(parts).detach().clone())
    momentum = {
        name: join([optimizer.state[part]["momentum_buffer"] for part in parts]) for name, parts in params.items()
    }
    return {name: torch.stack(values) for name, values in steps.items()}, momentum


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    torch.set_num_threads(1)
    rng = np.random.default_rng(17)
    weights = {name: draw(rng, shape, 0.1) for name, shape in SHAPES.items()}
    gradients = {
        name: torch.stack([draw_gradient(rng, shape) for _ in range(GRADIENTS)]) for name, shape in SHAPES.items()
    }
    steps, momentum = train(weights, gradients, torch.float64, torch.float64)
    for orthogonalized, most in [(torch.float32, 1e-5), (torch.bfloat16, 1e-1)]:
        others, _ = train(weights, gradients, torch.float32, orthogonalized)
        for name in SHAPES:
            off = ((others[name] - steps[name]).abs().amax((1, 2)) / steps[name].abs().amax((1, 2))).max().item()
            print(f"{name}: {off:.1e} off at most with {orthogonalized}")
            assert off < most, off
    tensors = {"learning_rates": torch.tensor(LEARNING_RATES), "scales": torch.tensor(SCALES)}
    for kind, values in [("weight", weights), ("grad", gradients), ("steps", steps), ("momentum", momentum)]:
        tensors |= {f"{kind}.{name}": value for name, value in values.items()}
    make.write_safetensors(out / "muon.safetensors", tensors)


if __name__ == "__main__":
    main()

"""Computes reference data for Llama, Qwen2 and Qwen3 with PyTorch, and checks it against transformers.

    pip install torch numpy transformers safetensors
    python tests/reference/llama.py [FOLDER]     # default: the folder of this script

Like make.py: in float64 from weights that are exact in float32, and stored as float32. transformers computes norms
and angles in float32 whatever the dtype, so the formulas are here too, and it has to agree with them.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from make import ADAM_EPS, BETAS, GRAD_CLIP, WEIGHT_DECAY, check, gap, mean_loss, worst_gap, write_safetensors
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

BATCH, STEPS = 3, 10
LEARNING_RATES = [3e-3] * 5 + [1e-3] * 5

# Grouped heads, heads that are no quotient of the width, ragged lengths: layers, width, heads, heads of keys and
# values, head size, MLP width, positions, vocabulary, base of the angles, epsilon, tied head.
SHAPES = [
    (2, 32, 4, 2, 8, 48, 16, 65, 1e4, 1e-5, True),
    (2, 24, 3, 1, 8, 40, 13, 50, 1e5, 1e-6, False),
    (1, 20, 2, 2, 10, 30, 19, 41, 1e6, 1e-5, True),
    (2, 42, 6, 2, 12, 64, 9, 33, 500.0, 1e-6, True),
    (3, 16, 4, 4, 4, 24, 21, 71, 1e4, 1e-5, False),
    # With scaled angles.
    (2, 32, 4, 2, 16, 40, 40, 61, 1e4, 1e-5, True),
    (2, 24, 2, 1, 12, 32, 33, 47, 1e4, 1e-5, False),
]

MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, range(7)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, [0, 1]),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, range(5)),
}

# The scaling of the angles of a shape, by its number. Only Llamas have one.
SCALINGS = {
    5: {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 20,
    },
    6: {"rope_type": "linear", "factor": 3.0},
}


def shape_of(arch, number):
    shape = SHAPES[number]
    return (*shape[:-1], not shape[-1]) if arch == "qwen3" else shape


def scaling_of(arch, shape):
    return SCALINGS.get(SHAPES.index(shape)) if arch == "llama" else None


def config_of(arch, shape):
    layers, width, heads, kv_heads, size, ffn, time, vocab, theta, eps, tied = shape
    return MODELS[arch][0](
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=size,
        intermediate_size=ffn,
        max_position_embeddings=time,
        vocab_size=vocab,
        rope_parameters=(scaling_of(arch, shape) or {"rope_type": "default"}) | {"rope_theta": theta},
        rms_norm_eps=eps,
        tie_word_embeddings=tied,
        bos_token_id=vocab - 1,
        eos_token_id=vocab - 1,
        attn_implementation="eager",
    )


def draw_weights(model, seed):
    """Draws values for the parameters of a model, with deviations large enough for every weight to matter."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, parameter in model.named_parameters():
        mean, std = (1.0, 0.2) if parameter.dim() == 1 else (0.0, 0.15)
        if name.endswith(".bias"):
            mean, std = 0.0, 0.3
        if name == "model.norm.weight":
            mean, std = 0.3, 0.06
        values = (mean + std * rng.standard_normal(parameter.shape)).astype(np.float32)
        weights[name] = torch.from_numpy(values).double()
    return weights


def draw_batches(seed, time, vocab):
    rng = np.random.default_rng(seed)
    text = rng.integers(vocab, size=(STEPS, BATCH, time + 1))
    counts = rng.random(text.shape) < 0.75
    for t in range(1, time + 1):
        text[..., t] = np.where(counts[..., t], (text[..., t - 1] + 1) % 12, text[..., t])
    text = torch.from_numpy(text)
    return text[..., :-1].contiguous(), text[..., 1:].contiguous()


def scaled(angles, scaling):
    """Returns the angles from one position to the next as Llama 3.1 (arXiv:2407.21783) scales them."""
    if scaling is None:
        return angles
    if scaling["rope_type"] == "linear":
        return angles / scaling["factor"]
    turns = scaling["original_max_position_embeddings"] * angles / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    stays = ((turns - low) / (high - low)).clamp(0, 1)
    return angles * (stays + (1 - stays) / scaling["factor"])


def forward(w, tokens, arch, shape):
    layers, _, heads, kv_heads, size, _, _, _, theta, eps, tied = shape
    dtype, time = w["model.norm.weight"].dtype, tokens.shape[-1]

    def norm(name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w[f"{name}.weight"]

    step = scaled(theta ** (-torch.arange(0, size, 2) / size).double(), scaling_of(arch, shape))
    angles = torch.arange(time, dtype=torch.float64)[:, None] * step
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def rotate(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    x = w["model.embed_tokens.weight"][tokens]
    mask = torch.ones(time, time, dtype=torch.bool).triu(1)
    for i in range(layers):
        name = f"model.layers.{i}"
        h = norm(f"{name}.input_layernorm", x)

        def heads_of(part, count, h=h, name=name):
            y = h @ w[f"{name}.self_attn.{part}_proj.weight"].T
            if arch == "qwen2":
                y = y + w[f"{name}.self_attn.{part}_proj.bias"]
            y = y.unflatten(-1, (count, size))
            if arch == "qwen3" and part != "v":
                y = norm(f"{name}.self_attn.{part}_norm", y)
            return y.transpose(-2, -3)

        q, k, v = rotate(heads_of("q", heads)), rotate(heads_of("k", kv_heads)), heads_of("v", kv_heads)
        k, v = (y.repeat_interleave(heads // kv_heads, dim=-3) for y in (k, v))
        scores = (q @ k.transpose(-1, -2) / size**0.5).masked_fill(mask, float("-inf"))
        out = (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
        x = x + out @ w[f"{name}.self_attn.o_proj.weight"].T
        h = norm(f"{name}.post_attention_layernorm", x)
        gate, up = (h @ w[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (nn.functional.silu(gate) * up) @ w[f"{name}.mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight"] if tied else w["lm_head.weight"]
    return norm("model.norm", x) @ head.T


def train(weights, tokens, targets, arch, shape, dtype=torch.float64):
    """Runs STEPS AdamW steps. Returns the unclipped gradients of step 0, losses, norms, and the final weights."""
    w = {name: value.to(dtype).clone().requires_grad_() for name, value in weights.items()}
    groups = [
        {"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=BETAS, eps=ADAM_EPS, foreach=False, fused=False)
    losses, norms, first = [], [], None
    for step, rate in enumerate(LEARNING_RATES):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = mean_loss(forward(w, tokens[step], arch, shape), targets[step])
        loss.backward()
        first = first or {name: p.grad.clone() for name, p in w.items()}
        norms.append(nn.utils.clip_grad_norm_(w.values(), GRAD_CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    return first, losses, norms, {name: p.detach() for name, p in w.items()}


def make_case(out, arch, number, shape, seed):
    """Writes a case, unless AdamW moves a weight by the sign of a rounding error with this seed."""
    config = config_of(arch, shape)
    model = MODELS[arch][1](config).double().eval()
    weights = draw_weights(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    tokens, targets = draw_batches(seed + 100, shape[6], shape[7])
    logits = forward(weights, tokens[0], arch, shape)
    grads, losses, norms, final = train(weights, tokens, targets, arch, shape)
    _, _, _, final32 = train(weights, tokens, targets, arch, shape, torch.float32)
    if max((final32[n] - value).abs().max().item() for n, value in final.items()) > 3e-5:
        return False
    assert any(norm > GRAD_CLIP for norm in norms), norms

    name = f"{arch}_{number}"
    hf_logits = model(tokens[0]).logits
    mean_loss(hf_logits, targets[0]).backward()
    hf_grads = {n: p.grad for n, p in model.named_parameters()}
    of_logits = check(f"{name} logits against transformers", gap(hf_logits, logits), 2e-6)
    of_grads = check(f"{name} gradients against transformers", worst_gap(hf_grads, grads), 1e-5)
    tensors = {
        "tokens": tokens,
        "targets": targets,
        "logits": logits,
        "losses": torch.tensor(losses, dtype=torch.float64),
        "grad_norms": torch.tensor(norms, dtype=torch.float64),
        "learning_rates": torch.tensor(LEARNING_RATES, dtype=torch.float64),
    }
    for kind, values in [("weight", weights), ("grad", grads), ("final", final)]:
        tensors |= {f"{kind}.{n}": value for n, value in values.items()}
    text = json.dumps(json.loads(config.to_json_string(use_diff=False)), sort_keys=True)
    write_safetensors(out / f"{name}.safetensors", tensors, {"config": text})
    print(f"{name}: seed {seed}, losses {losses[0]:.4f} to {losses[-1]:.4f}; transformers: logits {of_logits:.1e}, "
          f"gradients {of_grads:.1e}")  # fmt: skip
    return True


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    torch.set_num_threads(1)
    for arch, (_, _, numbers) in MODELS.items():
        for number in numbers:
            shape = shape_of(arch, number)
            seed = next(seed for seed in range(100) if make_case(out, arch, number, shape, seed))
            assert seed is not None


if __name__ == "__main__":
    main()

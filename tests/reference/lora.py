"""Computes reference data for adapters with PyTorch, and checks it against PEFT.

    pip install torch numpy transformers safetensors peft gguf
    python tests/reference/lora.py [FOLDER]     # default: the folder `lora` next to this script

The bases are models of this folder. Like llama.py: in float64 from weights that are exact in float32, with formulas
that PEFT on transformers has to agree with. The adapters are as PEFT saves them.
"""

import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import llama
import make
import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from make import check, gap, mean_loss, worst_gap, write_safetensors
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, GPT2LMHeadModel

HERE = Path(__file__).resolve().parent
STEPS = 20
LEARNING_RATES = [3e-3] * 10 + [1e-3] * 10

# Base, rank, alpha, matrices with an adapter.
CASES = [
    ("hf_tiny", 4, 8.0, "all-linear"),
    ("llama_0", 3, 6.0, "all-linear"),
    ("llama_1", 2, 5.0, ["q_proj", "v_proj"]),
    ("qwen3_0", 4, 4.0, "all-linear"),
    ("qwen3_3", 2, 8.0, ["down_proj", "gate_proj", "k_proj"]),
    ("llama_5", 3, 6.0, "all-linear"),
    ("qwen2_0", 3, 6.0, "all-linear"),
]


def open_base(name):
    """Returns the model in float64, its weights by plain names, and the formula of its logits."""
    if name == "hf_tiny":
        config = AutoConfig.from_pretrained(HERE / name, attn_implementation="eager")
        model = GPT2LMHeadModel.from_pretrained(HERE / name, config=config).double()
        weights = {n.removeprefix("transformer."): p.detach() for n, p in model.named_parameters()}
        return model, weights, lambda w, tokens: make.forward(w, tokens, "tanh")
    arch, number = name.split("_")
    shape = llama.shape_of(arch, int(number))
    config_class, model_class, _ = llama.MODELS[arch]
    with safe_open(HERE / f"{name}.safetensors", "pt") as file:
        config = config_class(**json.loads(file.metadata()["config"]), attn_implementation="eager")
        names = [n for n in file.keys() if n.startswith("weight.")]
        weights = {n.removeprefix("weight."): file.get_tensor(n).double() for n in names}
    model = model_class(config).double()
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model, weights, lambda w, tokens: llama.forward(w, tokens, arch, shape)


def make_case(out, name, rank, alpha, targets, seed):
    base, weights, forward = open_base(name)
    is_gpt2 = name == "hf_tiny"
    time = make.BLOCK_SIZE if is_gpt2 else base.config.max_position_embeddings
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=is_gpt2
    )
    base.config.name_or_path = base.name_or_path = "BASE"
    model = get_peft_model(base, config).double().eval()
    rng = np.random.default_rng(seed)
    adapter = {}
    for n, parameter in model.named_parameters():
        if parameter.requires_grad:
            # B is not zero, so that A has a gradient.
            values = (0.2 * rng.standard_normal(parameter.shape)).astype(np.float32)
            adapter[n.replace(".default", "")] = parameter.data = torch.from_numpy(values).double()
            parameter.requires_grad_()
    model.save_pretrained(out / name)
    (out / name / "README.md").unlink(missing_ok=True)
    file = out / name / "adapter_model.safetensors"
    save_file({n: tensor.float() for n, tensor in load_file(file).items()}, file, {"format": "pt"})

    w = {n: tensor.clone().requires_grad_() for n, tensor in adapter.items()}
    llama.STEPS, llama.BATCH = STEPS, 3
    if is_gpt2:
        tokens, targets = make.draw_batches(seed + 100, STEPS, 3)
    else:
        tokens, targets = llama.draw_batches(seed + 100, time, base.config.vocab_size)

    def adapted():
        merged = dict(weights)
        for n in w:
            if n.endswith("lora_A.weight"):
                layer = n.removesuffix(".lora_A.weight").removeprefix("base_model.model.").removeprefix("transformer.")
                delta = alpha / rank * (w[n.replace("lora_A", "lora_B")] @ w[n])
                merged[f"{layer}.weight"] = weights[f"{layer}.weight"] + (delta.T if is_gpt2 else delta)
        return merged

    optimizer = torch.optim.AdamW(
        w.values(), betas=make.BETAS, eps=make.ADAM_EPS, weight_decay=make.WEIGHT_DECAY, foreach=False
    )
    losses, norms, grads, logits = [], [], None, None
    for step, rate in enumerate(LEARNING_RATES):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        y = forward(adapted(), tokens[step])
        loss = mean_loss(y, targets[step])
        loss.backward()
        if step == 0:
            grads, logits = {n: p.grad.clone() for n, p in w.items()}, y.detach()
        norms.append(nn.utils.clip_grad_norm_(w.values(), make.GRAD_CLIP).item())
        losses.append(loss.item())
        optimizer.step()

    found = model(tokens[0]).logits
    mean_loss(found, targets[0]).backward()
    found_grads = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.requires_grad}
    of_logits = check(f"{name} logits against PEFT", gap(found, logits), 2e-6)
    of_grads = check(f"{name} gradients against PEFT", worst_gap(found_grads, grads), 1e-5)
    tensors = {
        "tokens": tokens,
        "targets": targets,
        "logits": logits,
        "losses": torch.tensor(losses, dtype=torch.float64),
        "grad_norms": torch.tensor(norms, dtype=torch.float64),
        "learning_rates": torch.tensor(LEARNING_RATES, dtype=torch.float64),
    }
    for kind, values in [("grad", grads), ("final", {n: p.detach() for n, p in w.items()})]:
        tensors |= {f"{kind}.{n}": value for n, value in values.items()}
    write_safetensors(out / f"{name}.safetensors", tensors)
    print(f"{name}: losses {losses[0]:.4f} to {losses[-1]:.4f}, norms {min(norms):.2f} to {max(norms):.2f}; PEFT: "
          f"logits {of_logits:.1e}, gradients {of_grads:.1e}")  # fmt: skip


def make_quantized(out):
    """Writes the weights of llama_0 with each matrix whose inputs are in blocks of 32 as q8_0 rounds it."""
    with safe_open(HERE / "llama_0.safetensors", "np") as file:
        weights = {n.removeprefix("weight."): file.get_tensor(n) for n in file.keys() if n.startswith("weight.")}
    for n, weight in weights.items():
        if n.endswith("_proj.weight") and weight.shape[1] % 32 == 0:
            codes = quants.quantize(weight, GGMLQuantizationType.Q8_0)
            weights[n] = quants.dequantize(codes, GGMLQuantizationType.Q8_0)
    write_safetensors(out / "q8_0.safetensors", {n: torch.from_numpy(w) for n, w in weights.items()})


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "lora"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    torch.set_num_threads(1)
    for seed, case in enumerate(CASES):
        make_case(out, *case, seed)
    make_quantized(out)


if __name__ == "__main__":
    main()

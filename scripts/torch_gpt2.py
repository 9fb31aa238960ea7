"""Times training steps of GPT-2 in plain PyTorch, for comparison with `wgpt bench`.

    python3 torch_gpt2.py --batches 1,2,4 --dtypes float32,tf32,bfloat16,float16 --modes eager,compile

Prints one JSON object per line for each combination: dtype, compile, micro_batch, first_ms, ms,
tokens_per_s and peak_bytes, or error instead of the figures. The step is wgpt's: forward and
backward passes, the gradient norm clipped to 1, AdamW. The default model is GPT-2 124M with biases and
tied embeddings, and the vocabulary is padded to 50304 as in wgpt.
"""

import argparse
import contextlib
import gc
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, bias, gelu):
        super().__init__()
        self.heads = heads
        self.gelu = gelu
        self.before_attention = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.attended = nn.Linear(width, width, bias=bias)
        self.before_mlp = nn.LayerNorm(width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        batch, time, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, time, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate=self.gelu))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, width, block, vocab, bias=True, gelu="tanh"):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias, gelu) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        # Layers that add to the residual stream start smaller, by their number.
        residual = 0.02 / math.sqrt(2 * layers)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                small = name.endswith(("attended.weight", "down.weight"))
                nn.init.normal_(weight, std=residual if small else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt2(args):
    shape = args.layers, args.heads, args.width, args.block, args.vocab
    return Gpt2(*shape, bias=args.bias, gelu=args.gelu)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(args, device, dtype, compiled, micro_batch):
    """Returns the seconds of the first step and of the fastest of the others."""
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    model = args.model(args).to(device)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    faster = {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, **faster)
    # Shapes never change within a measurement.
    loss_of = torch.compile(model, dynamic=False) if compiled else model
    ids = torch.randint(min(args.vocab, 50257), (micro_batch, args.block + 1), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
    # This has no effect in other dtypes, as in nanoGPT.
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")

    def step():
        mixed = torch.autocast(device.type, dtype=half) if half else contextlib.nullcontext()
        with mixed:
            loss = loss_of(inputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def timed():
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        return time.perf_counter() - start

    first = timed()
    timed()  # AdamW's moments exist from here on.
    spent, best = 0.0, math.inf
    for number in range(args.steps):
        if number >= 2 and spent > args.seconds:
            break
        seconds = timed()
        best = min(best, seconds)
        spent += seconds
    return first, best


def row(args, device, dtype, compiled, micro_batch):
    result = {"dtype": dtype, "compile": compiled, "micro_batch": micro_batch}
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        first, best = measure(args, device, dtype, compiled, micro_batch)
        result["first_ms"] = first * 1e3
        result["ms"] = best * 1e3
        result["tokens_per_s"] = micro_batch * args.block / best
        # Memory that the allocator holds, as wgpt counts its pools.
        result["peak_bytes"] = torch.cuda.max_memory_reserved(device) if cuda else None
    except Exception as error:  # A missing compiler is a result too; other rows continue.
        text = f"{type(error).__name__}: {error}".strip()
        out_of_memory = "out of memory" in text.lower() or "allocate memory" in text.lower()
        result["error"] = "out of memory" if out_of_memory else text.splitlines()[0][:300]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = lambda text: [word for word in text.split(",") if word]
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", default="1,2,4,8,16,32", type=words)
    parser.add_argument("--dtypes", default="float32,tf32,bfloat16,float16", type=words)
    parser.add_argument("--modes", default="eager,compile", type=words)
    parser.add_argument("--layers", default=12, type=int)
    parser.add_argument("--heads", default=0, type=int, help="default: width / 64")
    parser.add_argument("--width", default=768, type=int)
    parser.add_argument("--block", default=1024, type=int)
    parser.add_argument("--vocab", default=50304, type=int)
    parser.add_argument("--bias", default=True, action=argparse.BooleanOptionalAction)
    parser.add_argument("--gelu", default="tanh", choices=("tanh", "none"), help="none: the exact form")
    parser.add_argument("--steps", default=20, type=int, help="maximum number of timed steps")
    parser.add_argument("--seconds", default=1.5, type=float, help="start no further step after this time")
    args = parser.parse_args()
    for names, known in [
        (args.dtypes, ("float32", "tf32", "bfloat16", "float16")),
        (args.modes, ("eager", "compile")),
    ]:
        for name in names:
            if name not in known:
                parser.error(f"{name} is not one of {', '.join(known)}")
    args.model = gpt2
    args.heads = args.heads or max(1, args.width // 64)
    device = torch.device(args.device)
    # Compiled modes come last: they take longest, and a time limit may end them.
    for mode in args.modes:
        for dtype in args.dtypes:
            for micro_batch in map(int, args.batches):
                result = row(args, device, dtype, mode == "compile", micro_batch)
                print(json.dumps(result), flush=True)
                # Free the last model and the code compiled for its shapes.
                gc.collect()
                if mode == "compile" and hasattr(torch, "compiler"):
                    torch.compiler.reset()
                if device.type == "cuda":
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

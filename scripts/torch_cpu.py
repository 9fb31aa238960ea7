"""Times training steps on the CPU in plain PyTorch, for `wgpt bench --device=cpu --torch=FILE`.

    python3 torch_cpu.py --threads 2 > torch.jsonl

The models: nanoGPT's CPU recipe, shakespeare-char at its full size with 8 sequences (both without
biases and with the exact GELU, as in nanoGPT), GPT-2 124M with one sequence of 256 tokens, and on request
two Llamas of the first two sizes, which are those of transformers. Prints one JSON object per line for each model and mode: wgpt's settings of the model, threads, torch, compile,
first_ms, ms and tokens_per_s, or error instead of the figures. The step is the one in torch_gpt2.py,
without dropout.
"""

import argparse
import gc
import json
import math

import torch

import torch_gpt2

KEYS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "batch_size", "bias", "gelu", "arch")
SIZES = {
    "cpu": (4, 4, 128, 64, 65, 12, False, "erf", "gpt2"),
    "char": (6, 6, 384, 256, 65, 8, False, "erf", "gpt2"),
    "gpt2": (12, 12, 768, 256, 50304, 1, True, "tanh", "gpt2"),
    "llama-cpu": (4, 4, 128, 64, 65, 12, False, "tanh", "llama"),
    "llama-char": (6, 6, 384, 256, 65, 8, False, "tanh", "llama"),
}


class Llama(torch.nn.Module):
    """transformers' model, with wgpt's default sizes."""

    def __init__(self, args):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            hidden_size=args.width,
            intermediate_size=math.ceil(8 * args.width / 3 / 64) * 64,
            max_position_embeddings=args.block,
            vocab_size=args.vocab,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, ids, targets):
        logits = self.model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def measure(model, compiled, args):
    step = argparse.Namespace(
        layers=model["n_layer"],
        heads=model["n_head"],
        width=model["n_embd"],
        block=model["block_size"],
        vocab=model["vocab_size"],
        bias=model["bias"],
        gelu="none" if model["gelu"] == "erf" else "tanh",
        model=Llama if model["arch"] == "llama" else torch_gpt2.gpt2,
        steps=args.steps,
        seconds=args.seconds,
    )
    row = torch_gpt2.row(step, torch.device("cpu"), "float32", compiled, model["batch_size"])
    for key in ("dtype", "micro_batch", "peak_bytes"):
        row.pop(key, None)
    return model | {"threads": torch.get_num_threads(), "torch": torch.__version__} | row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default=0, type=int, help="default: PyTorch's own")
    parser.add_argument("--sizes", default="cpu,char,gpt2")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--steps", default=40, type=int, help="maximum number of timed steps")
    parser.add_argument("--seconds", default=4.0, type=float, help="start no further step after this time")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    # Compiled modes come last: they take longest, and a time limit may end them.
    for mode in args.modes.split(","):
        for name in args.sizes.split(","):
            model = dict(zip(KEYS, SIZES[name]))
            print(json.dumps(measure(model, mode == "compile", args)), flush=True)
            gc.collect()
            if mode == "compile":
                torch.compiler.reset()


if __name__ == "__main__":
    main()

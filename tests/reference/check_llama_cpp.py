"""Checks that llama.cpp continues texts, and answers, from a GGUF file of `wgpt export` as wgpt does.

    pip install xllamacpp   # llama.cpp as a Python package; checked with 2026.10.11549
    python tests/reference/check_llama_cpp.py MODEL [WGPT [QUESTION...]]     # WGPT: the program, default `wgpt`

MODEL is a run or a folder. In f32, its texts must be the same, and with a model of conversations the answers to the
questions. For f16 and q8_0, whose texts may differ, it is printed how far they are the same.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import xllamacpp

NEW_TOKENS = 60
PROMPTS = ["The fox", "\n", "In the"]


def open_server(path: Path) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 0
    params.n_gpu_layers = 0
    params.verbosity = -1
    # Half precision is the default, with other tokens where two are about as likely.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def completed(server: xllamacpp.Server, prompt: str, length: int) -> str:
    request = {"prompt": prompt, "n_predict": length, "temperature": 0.0, "top_k": 1, "cache_prompt": False}
    return server.handle_completions(request)["choices"][0]["text"]


def answered(server: xllamacpp.Server, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    reply = server.handle_chat_completions({"messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0.0,
                                            "top_k": 1})  # fmt: skip
    return reply["choices"][0]["message"]["content"]


def sampled_by_wgpt(model: str, wgpt: str, prompt: str) -> str:
    command = [wgpt, "sample", model, "--device=cpu", f"--start={prompt}", "--temperature=0"]
    command += [f"--max-new-tokens={NEW_TOKENS}"]
    done = subprocess.run(command, check=True, capture_output=True)
    text = done.stdout.decode().removesuffix("\n").removeprefix(prompt)
    # llama.cpp stops at these.
    return text.split("<|end|>")[0].split("<|endoftext|>")[0]


def said_by_wgpt(model: str, wgpt: str, question: str) -> str:
    line = json.dumps({"messages": [{"role": "user", "content": question}]})
    command = [wgpt, "chat", model, "--device=cpu", "--temperature=0", f"--max-new-tokens={NEW_TOKENS}", "--json"]
    done = subprocess.run(command, input=line.encode(), check=True, capture_output=True)
    return "".join(json.loads(piece).get("text", "") for piece in done.stdout.splitlines())


def main(model: str, wgpt: str, questions: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        servers = {}
        for kind in ["f32", "f16", "q8_0"]:
            path = Path(folder) / f"{kind}.gguf"
            subprocess.run([wgpt, "export", model, "-o", path, "--type", kind], check=True, capture_output=True)
            servers[kind] = open_server(path)
        for prompt in PROMPTS:
            sampled = sampled_by_wgpt(model, wgpt, prompt)
            for kind, server in servers.items():
                made = completed(server, prompt, NEW_TOKENS)
                same = next((at for at, pair in enumerate(zip(made, sampled)) if pair[0] != pair[1]), len(sampled))
                print(f"{prompt!r}, {kind}: {same} of {len(sampled)} characters are the same")
                assert kind != "f32" or made == sampled, f"llama.cpp generates {made!r}, wgpt {sampled!r}"
        for question in questions:
            said = said_by_wgpt(model, wgpt, question)
            made = answered(servers["f32"], question)
            assert made == said, f"llama.cpp answers {made!r}, wgpt {said!r}"
            print(f"{question!r}: both answer {said!r}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "wgpt", sys.argv[3:])

"""Train GPT-2, Llama and Qwen with the program wgpt, which this package installs.

Settings and flags are keyword arguments: `wgpt.train(preset="demo", max_iters=100)`. `wgpt train --help` lists them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypedDict

from wgpt._program import Error, Process

__all__ = ["Error", "Event", "Run", "plan", "run", "sample", "train"]

_Path = str | os.PathLike[str]
_Option = _Path | float | None

# The flags without a value. Settings that are true or false have one: `--bias=False`.
_SWITCHES = {"calibrate", "measure", "no_self_test", "quiet", "resume", "suggest", "verbose"}


class Event(TypedDict):
    """An event as `wgpt train --json` prints it. It has the keys of its kind; these are the usual ones."""

    event: Literal[
        "start", "plan", "step", "eval", "sample", "checkpoint", "note", "warning", "error", "paused", "resumed",
        "finishing", "retimed", "replan", "waiting", "working", "done",
    ]  # fmt: skip
    time: str
    iter: int  # The updates made before. Losses are in nats per token.
    run: str  # start
    config: dict[str, Any]
    params: int
    loss: float | None  # step
    lr: float
    tokens_per_s: float
    train_loss: float  # eval
    val_loss: float
    bits_per_byte: float
    prompt: str  # sample
    text: str  # sample, note, warning, error
    hint: str  # error
    path: str  # checkpoint
    best: bool
    best_val_loss: float | None  # done
    reason: Literal["finished", "max_time", "stopped", "eval_only"]


class Run(AbstractContextManager["Run"]):
    """A run in a child process, its folder and its result. Yields events; leaving the loop early stops the run."""

    def __init__(self, *args: str) -> None:
        self.run: Path | None = None
        self.best_val_loss: float | None = None
        self._process = Process("train", "--json", "--stop-on-close", *args)

    def __iter__(self) -> Iterator[Event]:
        with self:
            yield from self._events()

    def __exit__(self, *_: object) -> None:
        """Stops the run if it still trains, and waits for its checkpoint. A second interrupt does not wait."""
        if self._process.returncode is None:
            self.stop()
            try:
                for _event in self._events():
                    pass
            except KeyboardInterrupt:
                self._process.kill()
                raise

    def stop(self) -> None:
        """Asks the run to write a checkpoint and stop, as Ctrl-C does. Its last events follow."""
        self._process.send('{"command":"stop"}\n')

    def _events(self) -> Iterator[Event]:
        is_done = False
        for line in self._process.lines():
            event: Event = json.loads(line)
            if event["event"] == "start":
                self.run = Path(event["run"])
            elif event["event"] == "done":
                self.best_val_loss, is_done = event["best_val_loss"], True
            yield event
        self._process.send(is_last=True)
        # After a signal from elsewhere, the exit code of a run that ends well is not 0.
        if self._process.wait() != 0 and not is_done:
            raise self._process.error()


def train(config: _Path | None = None, /, **settings: _Option) -> Run:
    """Starts `wgpt train` with these settings, and with a configuration file if you give one."""
    return Run(*_arguments(config, settings))


def plan(config: _Path | None = None, /, **settings: _Option) -> dict[str, Any]:
    """Returns the object of `wgpt plan --json`, with `"fits": False` for a run that does not fit."""
    return dict(json.loads(_output("plan", "--json", *_arguments(config, settings), accepts=3)))


def sample(model: _Path | None = None, prompt: str | None = None, /, **options: _Option) -> list[str]:
    """Returns `num_samples` texts, by default one, that continue the prompt. The default model is the newest run."""
    # On stdin, a prompt may have any length and is never the name of a file.
    start, stdin = ([], "") if prompt is None else (["--start=-"], f"{prompt}\n")
    texts = [""]
    for line in _output("sample", "--json", *start, *_arguments(model, options), stdin=stdin).splitlines():
        piece = json.loads(line)
        if "done" in piece:
            texts.append("")
        else:
            texts[-1] += piece["text"]
    return texts[:-1]


def run(*args: str) -> str:
    """Runs any other command, like `wgpt.run("prepare", "my.txt", "-o", "data/mine")`, and returns its output."""
    return _output(*args).decode()


def _output(*args: str, stdin: str = "", accepts: int = 0) -> bytes:
    """Returns the output of a command. One that exits with the code `accepts` may still have output."""
    process = Process(*args)
    try:
        process.send(stdin, is_last=True)
        output = b"".join(process.lines())
        code = process.wait()
    finally:
        process.terminate()  # does nothing if it has ended
    if code != 0 and (code != accepts or not output):
        raise process.error()
    return output


def _arguments(path: _Path | None, options: dict[str, _Option]) -> Iterator[str]:
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name not in _SWITCHES and value is not None:
            yield f"{flag}={value}"
        elif value:
            yield flag
    if path is not None:
        yield from ["--", os.fspath(path)]

"""The program: where it is, and its process."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import IO

# An error on stderr with its indented lines, and its hint.
_ERROR = re.compile(r"^error: (.+(?:\n {2,}(?!hint: |tip: ).+)*)(?:\n+ +(?:hint|tip): (.+))?", re.MULTILINE)


class Error(Exception):
    """The program has failed. It has no exit code if it could not start."""

    def __init__(self, message: str, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message, hint, exit_code)
        self.message, self.hint, self.exit_code = message, hint, exit_code

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def find() -> str:
    """Returns the path of the program: `$WGPT`, else this package's program, else the first one on `PATH`."""
    scripts, packages = sysconfig.get_path("scripts"), os.path.dirname(os.path.dirname(__file__))
    folders = [
        # The scripts that belong to this package, also after `pip install --prefix` or `--target`.
        os.path.join(packages, os.path.relpath(scripts, sysconfig.get_path("platlib"))),
        os.path.join(packages, "bin"),
        scripts,
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
        os.environ.get("PATH", os.defpath),
    ]
    name = os.environ.get("WGPT") or "wgpt"
    for folder in os.pathsep.join(folders).split(os.pathsep):
        # With a folder, `which` does not look in the working folder, as it does on Windows.
        if program := shutil.which(os.path.join(folder or os.curdir, name)):
            return program
    raise Error(f"{name}: no such program", "`pip install wgpt` installs it")


class Process(subprocess.Popen[bytes]):
    """The program. Threads read its pipes, so that it never waits for a reader.

    It has its own process group, so an interrupt reaches only Python, and a notebook that ends does not kill a run.
    """

    def __init__(self, *args: str) -> None:
        super().__init__(
            [find(), "--color=never", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._messages = ""
        self._reader = threading.Thread(target=_read, args=(self.stdout, self._lines.put), daemon=True)
        self._relay = threading.Thread(target=_read, args=(self.stderr, self._pass_on), daemon=True)
        self._reader.start()
        self._relay.start()

    def _pass_on(self, line: bytes) -> None:
        message = line.decode(errors="replace")
        self._messages += message
        # The program continues even if Python's stderr is closed.
        with contextlib.suppress(OSError, ValueError):
            print(message, end="", file=sys.stderr, flush=True)

    def send(self, text: str = "", *, is_last: bool = False) -> None:
        """Writes to the program, unless it has ended. After the last text its input is closed."""
        assert self.stdin
        with contextlib.suppress(OSError, ValueError):
            self.stdin.write(text.encode())
            self.stdin.close() if is_last else self.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        """Yields the lines of the output until the program ends."""
        while self._reader.is_alive() or not self._lines.empty():
            # Windows delivers an interrupt only between two waits.
            with contextlib.suppress(queue.Empty):
                yield self._lines.get(timeout=0.1)

    def error(self) -> Error:
        """Returns the error of a program that has failed, from its messages."""
        self._relay.join(timeout=1)
        errors = _ERROR.findall(self._messages)
        message, hint = errors[-1] if errors else (f"wgpt ended with exit code {self.returncode}", "")
        return Error(message, hint, self.returncode)


def _read(pipe: IO[bytes], take: Callable[[bytes], None]) -> None:
    with pipe:
        for line in pipe:
            take(line)

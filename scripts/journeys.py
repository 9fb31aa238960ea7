#!/usr/bin/env python3
"""Walks four journeys through the window as a person does, and counts the clicks: the demo, a book for ten
minutes, fine-tuning a model on chats, and a model that is opened and exported for Ollama. Each is walked with
the pointer, and then by keyboard alone.

    scripts/journeys.py WGPT [FOLDER [JOURNEY...]]

WGPT is the program. Pictures go to FOLDER, by default a temporary one. Without a JOURNEY it walks them all. The
window runs under Xvfb with settings and runs of its own, and its widgets are found where a screen reader finds
them. Needs the Debian packages xvfb, xdotool, imagemagick, dbus, at-spi2-core, python3-gi and gir1.2-atspi-2.0, and
a Vulkan driver; a software renderer is enough.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUS = ["gdbus", "call", "--session", "--dest", "org.a11y.Bus", "--object-path", "/org/a11y/bus"]
READER = ["org.freedesktop.DBus.Properties.Set", "org.a11y.Status", "ScreenReaderEnabled", "<true>"]

# A widget may come late: a text is prepared, a device is measured.
PATIENCE = 240.0


class Fault(Exception):
    """What a person would have stumbled over."""


class Window:
    """A window of wgpt, its widgets by their names, and the clicks or keys that a person has needed."""

    def __init__(self, wgpt, home, pictures, by_keyboard):
        self.pictures, self.by_keyboard, self.clicks, self.shots = pictures, by_keyboard, 0, 0
        self.program = subprocess.Popen([wgpt], cwd=home, stderr=open(home / "stderr", "w"))
        try:
            search = ["xdotool", "search", "--sync", "--onlyvisible", "--name", "wgpt"]
            found = subprocess.run(search, capture_output=True, text=True, check=True, timeout=60)
            self.id = found.stdout.split()[-1]
            self.find(["New"])
            xdotool("windowfocus", "--sync", self.id)
        except BaseException:
            self.close()
            raise

    def close(self):
        self.program.kill()
        self.program.wait()

    def root(self):
        desktop = Atspi.get_desktop(0)
        for index in range(desktop.get_child_count()):
            application = desktop.get_child_at_index(index)
            if application and application.get_process_id() == self.program.pid:
                return application
        return None

    def widgets(self):
        waiting = [self.root()]
        while waiting:
            widget = waiting.pop()
            # A widget that goes meanwhile is none.
            with contextlib.suppress(GLib.GError):
                if widget is not None:
                    yield widget
                    children = range(widget.get_child_count())
                    waiting += [widget.get_child_at_index(index) for index in reversed(children)]

    def look(self, names):
        """Returns the widget of one of these names, if it can be used."""
        for widget in self.widgets():
            with contextlib.suppress(GLib.GError):
                states = widget.get_state_set()
                if widget.get_name() in names and states.contains(Atspi.StateType.SENSITIVE):
                    return widget
        return None

    def find(self, names):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.program.poll() is not None:
                raise Fault(f"the window has ended with {self.program.returncode}")
            if (widget := self.look(names)) is not None:
                return widget
            time.sleep(0.2)
        others = sorted({widget.get_name()[:40] for widget in self.widgets()} - {""})
        raise Fault(f"there is no {names[0]!r} to be used; there is: {', '.join(others)}")

    def picture(self, name):
        # What a screen reader finds is drawn a frame later.
        time.sleep(1)
        self.shots += 1
        kind = "keys" if self.by_keyboard else "clicks"
        file = self.pictures / f"{name}-{kind}-{self.shots}.png"
        subprocess.run(["import", "-window", "root", file], check=True)

    def use(self, *names):
        """Clicks the widget of one of these names, or goes to it by Tab and presses it."""
        self.find(names)
        self.clicks += 1
        if self.by_keyboard:
            return self.go_to(names)
        # It may move as long as things arrive.
        end = time.monotonic() + PATIENCE
        place = None
        while time.monotonic() < end:
            box = self.find(names).get_extents(Atspi.CoordType.SCREEN)
            before, place = place, (box.x + box.width // 2, box.y + box.height // 2)
            if place == before:
                break
            time.sleep(0.4)
        xdotool("mousemove", "--sync", *place, "click", 1)
        time.sleep(0.5)

    def focused(self):
        for widget in self.widgets():
            with contextlib.suppress(GLib.GError):
                if widget.get_state_set().contains(Atspi.StateType.FOCUSED):
                    return widget.get_name()
        return ""

    def go_to(self, names):
        seen = [self.focused()]
        while seen[-1] not in names:
            xdotool("key", "Tab")
            # A window that draws in software takes a while, and two widgets in a row may have one name.
            end = time.monotonic() + 2
            while self.focused() == seen[-1] and time.monotonic() < end:
                time.sleep(0.05)
            seen.append(self.focused())
            if len(seen) > 150:
                raise Fault(f"Tab does not come to {names[0]!r}, but to: {', '.join(seen)}")
        xdotool("key", "space")
        time.sleep(0.5)

    def choose(self, *names):
        """Uses a radio button, which is chosen then."""
        self.use(*names)
        chosen = lambda: self.find(names).get_state_set().contains(Atspi.StateType.CHECKED)
        wait_for(f"a choice of {names[0]!r}", chosen)

    def type(self, text):
        """Types into the dialog of this system, which has none of its own, and confirms."""
        self.find(["Path"])
        wait_for("keyboard focus in the dialog", lambda: self.focused() == "Path")
        xdotool("type", "--delay", 20, str(text))
        xdotool("key", "Return")
        time.sleep(0.5)


def xdotool(*words):
    subprocess.run(["xdotool", *map(str, words)], check=True)


def wait_for(what, is_there):
    end = time.monotonic() + PATIENCE
    while not is_there():
        if time.monotonic() > end:
            raise Fault(f"after {PATIENCE:.0f} s there is no sign of {what}")
        time.sleep(0.5)


def updates(home):
    """Returns true if a run below a folder has made ten updates."""
    records = (home / "out").glob("*/events.jsonl")
    return any(record.read_text().count('"event":"step"') >= 10 for record in records)


def demo(window, home, _):
    window.use("Start the demo")
    wait_for("updates", lambda: updates(home))


def book(window, home, texts):
    window.use("Your text")
    window.use("Files...")
    window.type(texts / "book.txt")
    window.choose("10 minutes", "10 minutes or longer")
    window.picture("ready")
    window.use("Start training")
    wait_for("updates", lambda: updates(home))


def fine_tuning(window, home, texts):
    window.use("Fine-tune a model")
    window.use("Choose a model...")
    window.type(texts / "model")
    window.use("Files...")
    window.type(texts / "chats.jsonl")
    window.choose("10 minutes", "10 minutes or longer")
    window.picture("ready")
    window.use("Start training")
    wait_for("updates", lambda: updates(home))


def export(window, home, texts):
    window.use("Open model...")
    window.type(texts / "model")
    window.use("Export")
    window.picture("menu")
    window.use("Ollama and LM Studio...")
    window.type(home)
    wait_for("files for Ollama", lambda: any(home.rglob("Modelfile")))
    wait_for("a notice", lambda: any(w.get_name().startswith("Exported to") for w in window.widgets()))


# The most clicks that a person should need, without those in the system's own dialogs.
JOURNEYS = [(demo, 1), (book, 4), (fine_tuning, 5), (export, 3)]


def write_texts(wgpt, texts):
    """Writes a book, chats, and a small model of conversations."""
    lines = (f"The {n}. fox saw {n * 7 % 13} red baskets and went home.\n" for n in range(1800))
    (texts / "book.txt").write_text("".join(lines))
    with open(texts / "chats.jsonl", "w") as file:
        for n in range(400):
            said = [("user", f"What is {n} and one?"), ("assistant", f"It is {n + 1}.")]
            messages = [{"role": role, "content": content} for role, content in said]
            file.write(json.dumps({"messages": messages}) + "\n")
    prepared = [wgpt, "prepare", texts / "chats.jsonl", "-o", texts / "data"]
    shape = ["--arch=llama", "--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=64"]
    length = ["--max_iters=20", "--eval_interval=20", "--batch_size=4", "--device=cpu"]
    train = [wgpt, "train", f"--data={texts / 'data'}", f"--out_dir={texts / 'run'}", *shape, *length]
    exported = [wgpt, "export", texts / "run", "-o", texts / "model"]
    for command in (prepared, train, exported):
        subprocess.run(command, check=True, capture_output=True, cwd=texts)


def end_all(home):
    """Ends the processes that work in a folder: a run outlives its window."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve() == home.resolve():
                os.kill(int(process.name), signal.SIGKILL)


def walk(wgpt, pictures, chosen):
    subprocess.run([*BUS, "--method", *READER], check=True, capture_output=True)
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        texts = pathlib.Path(folder, "texts")
        texts.mkdir()
        write_texts(wgpt, texts)
        for journey, most in JOURNEYS:
            name = journey.__name__
            if chosen and name not in chosen:
                continue
            for by_keyboard in (False, True):
                home = pathlib.Path(folder, f"{name}-{by_keyboard}")
                home.mkdir()
                os.environ["HOME"] = str(home)
                window = None
                try:
                    window = Window(wgpt, home, pictures, by_keyboard)
                    journey(window, home, texts)
                    if window.clicks > most:
                        raise Fault(f"{window.clicks} clicks, where {most} are enough")
                    kind = "widgets by keyboard" if by_keyboard else "clicks"
                    print(f"ok: {name}: {window.clicks} {kind}", flush=True)
                except Fault as fault:
                    faults += 1
                    kind = "by keyboard" if by_keyboard else "by pointer"
                    print(f"fault: {name}, {kind}: {fault}", flush=True)
                finally:
                    if window is not None:
                        window.picture(name)
                        window.close()
                    end_all(home)
    return faults


def main():
    global Atspi, GLib
    wgpt = pathlib.Path(sys.argv[1]).resolve()
    if "WGPT_JOURNEYS" not in os.environ:
        # With a display, a session bus and a registry of accessible programs of its own.
        return alone(wgpt)
    import gi

    gi.require_version("Atspi", "2.0")
    from gi.repository import Atspi, GLib

    chosen = sys.argv[3:]
    if unknown := set(chosen) - {journey.__name__ for journey, _ in JOURNEYS}:
        sys.exit(f"error: no journey is called {', '.join(sorted(unknown))}")
    pictures = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()).resolve()
    pictures.mkdir(parents=True, exist_ok=True)
    faults = walk(wgpt, pictures, chosen)
    print(f"{faults} faults; pictures in {pictures}")
    return min(faults, 1)


def alone(wgpt):
    for program in ("Xvfb", "xdotool", "import", "dbus-run-session", "gdbus"):
        if shutil.which(program) is None:
            sys.exit(f"error: {program} is not installed; see the first lines of {sys.argv[0]}")
    with tempfile.TemporaryDirectory() as folder:
        variables = ("DATA", "CONFIG", "CACHE")
        own = {name: value for name, value in os.environ.items() if not name.startswith("WGPT_")}
        own = {name: value for name, value in own.items() if name != "WAYLAND_DISPLAY"}
        for name in variables:
            own.pop(f"XDG_{name}_HOME", None)
        own |= {"WGPT_JOURNEYS": "1", "HOME": folder, "XDG_RUNTIME_DIR": folder, "NO_AT_BRIDGE": "0"}
        # The server chooses a free display.
        read, write = os.pipe()
        screen = ["-screen", "0", "1400x900x24", "-noreset", "-displayfd", str(write)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(["Xvfb", *screen], pass_fds=[write], **quiet)
        try:
            own["DISPLAY"] = ":" + os.read(read, 16).decode().strip()
            me = [sys.executable, __file__, str(wgpt), *sys.argv[2:]]
            session = ["dbus-run-session", "--", *me]
            with open(os.path.join(folder, "bus"), "w") as log:
                return subprocess.run(session, env=own, stderr=log).returncode
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())

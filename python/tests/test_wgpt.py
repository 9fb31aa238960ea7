"""Tests the module with a real program, on the CPU and in temporary folders.

`PYTHONPATH=python WGPT=$PWD/target/release/wgpt python3 -m unittest discover -s python/tests`. Without `WGPT`, the installed program.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import wgpt

ROOT = Path(__file__).parents[2]

# A model that trains in seconds, also in a program without optimizations.
TINY: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "batch_size": 4, "max_iters": 40, "warmup_iters": 4,
    "eval_interval": 20, "eval_iters": 2, "log_interval": 1, "sample_tokens": 5, "device": "cpu",
}  # fmt: skip
DEMO = {**TINY, "preset": "demo"}
ENDLESS = {**DEMO, "max_iters": 1_000_000, "eval_interval": 1_000_000}


def last_event(run: Path) -> dict[str, Any]:
    """Returns the last event in the record of a run."""
    event: dict[str, Any] = json.loads((run / "events.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return event


def is_saved(run: Path) -> bool:
    """Returns true if the run was stopped, and has a checkpoint of its last update."""
    event = last_event(run)
    return event.get("reason") == "stopped" and (run / f"checkpoints/{event['iter']:08}/state.json").exists()


class TestCase(unittest.TestCase):
    def setUp(self) -> None:
        """Moves to an empty folder. The program finds no settings of the user, and its messages are kept."""
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(folder.name)
        self.messages = io.StringIO()
        redirected = contextlib.redirect_stderr(self.messages)
        redirected.__enter__()
        self.addCleanup(redirected.__exit__, None, None, None)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WGPT_")}
        kept |= {name: folder.name for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA")}
        environment = mock.patch.dict(os.environ, kept, clear=True)
        environment.start()
        self.addCleanup(environment.stop)


class Train(TestCase):
    def test_a_run_yields_its_events_and_has_a_result(self) -> None:
        run = wgpt.train(run=Path("r"), bias=False, hours=None, **DEMO)
        events = list(run)
        self.assertEqual([event["iter"] for event in events if event["event"] == "step"], list(range(40)))
        losses = [event["val_loss"] for event in events if event["event"] == "eval"]
        self.assertEqual((run.run, run.best_val_loss), (Path("r"), min(losses)))
        self.assertEqual((events[-1]["event"], events[-1]["reason"]), ("done", "finished"))
        self.assertIn("device: CPU", self.messages.getvalue())
        self.assertEqual(list(run), [], "it has ended")

    def test_a_configuration_file_is_read(self) -> None:
        Path("my.toml").write_text("n_layer = 2\n")
        [start] = [event for event in wgpt.train("my.toml", eval_only=True, **DEMO) if event["event"] == "start"]
        self.assertEqual((start["config"]["n_layer"], start["config"]["eval_only"]), (1, True))

    def test_a_stopped_run_is_saved_and_resumes(self) -> None:
        run = wgpt.train(run="r", **ENDLESS)
        for event in run:
            if event["event"] == "step":
                run.stop()
        self.assertEqual((event["event"], event["reason"]), ("done", "stopped"))
        self.assertTrue(is_saved(Path("r")))
        resumed = wgpt.train(run="r", resume=True, max_iters=event["iter"] + 3)
        steps = [later["iter"] for later in resumed if later["event"] == "step"]
        self.assertEqual(steps, [event["iter"] + more for more in range(3)])

    def test_leaving_the_loop_stops_the_run(self) -> None:
        run = wgpt.train(run="r", **ENDLESS)
        with self.assertRaises(KeyboardInterrupt):
            for event in run:
                if event["event"] == "step":
                    raise KeyboardInterrupt
        self.assertTrue(is_saved(Path("r")))
        self.assertEqual(list(run), [])

    def test_leaving_the_block_stops_the_run(self) -> None:
        with wgpt.train(run="r", **ENDLESS) as run:
            next(event for event in run._events() if event["event"] == "step")
        self.assertTrue(is_saved(Path("r")))
        with wgpt.train(run="at-once", **ENDLESS) as run:
            pass
        self.assertIsNone(run.best_val_loss)

    def test_a_run_does_not_wait_for_its_reader(self) -> None:
        run = wgpt.train(run="r", **{**DEMO, "max_iters": 600, "eval_interval": 600})
        # Their events do not fit into a pipe.
        self.wait(lambda: Path("r/checkpoints/00000600").exists())
        self.assertEqual(sum(event["event"] == "step" for event in run), 600)

    @unittest.skipIf(os.name == "nt", "Windows has no signals")
    def test_a_signal_from_elsewhere_is_no_error(self) -> None:
        run = wgpt.train(run="r", **ENDLESS)
        for event in run:
            if event["event"] == "step" and event["iter"] == 0:
                run._process.terminate()
        self.assertEqual((event["event"], run._process.returncode), ("done", 143))
        self.assertTrue(is_saved(Path("r")))

    @unittest.skipIf(os.name == "nt", "Windows has no signals")
    def test_a_run_is_saved_when_python_is_interrupted_or_killed(self) -> None:
        for body, number in [("pass", signal.SIGINT), ("time.sleep(60)", signal.SIGINT), ("pass", signal.SIGKILL)]:
            with self.subTest(body=body, number=number), tempfile.TemporaryDirectory() as folder:
                script = f"import time, wgpt\nfor event in wgpt.train(run='r', **{ENDLESS}):\n"
                script += f"    if event['event'] == 'step':\n        print('step', flush=True)\n        {body}\n"
                environment = {**os.environ, "PYTHONPATH": str(Path(wgpt.__file__).parents[1])}
                python = subprocess.Popen(
                    [sys.executable, "-c", script], cwd=folder, env=environment, stdout=-1, stderr=-1, text=True
                )
                with python:
                    assert python.stdout
                    if python.stdout.readline():
                        python.send_signal(number)
                    said = python.communicate()[1]
                self.assertEqual(python.returncode, -number, said)
                self.assertTrue("KeyboardInterrupt" in said or number == signal.SIGKILL, said)
                self.wait(lambda: is_saved(Path(folder, "r")), 0 if number == signal.SIGINT else 60)

    def wait(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, self.messages.getvalue())
            time.sleep(0.05)


class Commands(TestCase):
    def test_a_plan_says_whether_a_run_fits(self) -> None:
        plan = wgpt.plan(**DEMO)
        self.assertEqual((plan["fits"], plan["micro_batch"]), (True, 4))
        plan = wgpt.plan(preset="gpt2-xl", target="4GiB")
        self.assertFalse(plan["fits"])
        self.assertTrue(plan["fixes"])

    def test_samples_continue_a_prompt(self) -> None:
        run = wgpt.train(run="r", **DEMO)
        list(run)
        options: dict[str, Any] = {"max_new_tokens": 7, "device": "cpu", "seed": 1}
        texts = wgpt.sample(run.run, "In the ", num_samples=2, **options)
        self.assertEqual([len(text) for text in texts], [7, 7])
        self.assertNotEqual(*texts)
        self.assertEqual(wgpt.sample("r", "In the ", **options), texts[:1])
        # No default run.
        with self.assertRaises(wgpt.Error):
            wgpt.sample()
        # A prompt is never the name of a file.
        Path("e").write_text("the")
        with self.assertRaisesRegex(wgpt.Error, "cannot be tokenized: character ':'"):
            wgpt.sample("r", "FILE:e", **options)

    def test_other_commands_return_their_output(self) -> None:
        Path("my.txt").write_text("Once upon a time. " * 99)
        wgpt.run("prepare", "my.txt", "-o", "data")
        self.assertTrue(Path("data/train.bin").exists())
        self.assertEqual(json.loads(wgpt.run("runs", "--json")), [])


class Errors(TestCase):
    def test_an_error_has_its_hint_and_exit_code(self) -> None:
        with self.assertRaises(wgpt.Error) as raised:
            list(wgpt.train(preset="nope"))
        error = raised.exception
        self.assertEqual((error.message, error.exit_code), ("--preset: unknown preset `nope`", 2))
        self.assertIn(error.hint, self.messages.getvalue().splitlines()[-1])
        self.assertEqual(str(error), f"{error.message}\n  hint: {error.hint}")
        with self.assertRaises(wgpt.Error) as of_a_plan:
            wgpt.plan(preset="nope")
        self.assertEqual(of_a_plan.exception.args, error.args)

    def test_an_error_is_the_one_of_the_event(self) -> None:
        Path("my.toml").write_text("[model]\nn_layers = 2\n")
        events: list[wgpt.Event] = []
        with self.assertRaises(wgpt.Error) as raised:
            events.extend(wgpt.train("my.toml"))
        self.assertEqual((raised.exception.message, raised.exception.hint), (events[-1]["text"], events[-1]["hint"]))

    def test_an_unknown_setting_has_a_hint(self) -> None:
        with self.assertRaisesRegex(wgpt.Error, "'--max-iter' found\n  hint: .*'--max-iters'"):
            list(wgpt.train(max_iter=3))

    def test_an_error_within_a_block_is_raised_once(self) -> None:
        with self.assertRaises(wgpt.Error) as raised, wgpt.train(preset="nope") as run:
            list(run)
        self.assertIsNone(raised.exception.__context__)
        with self.assertRaises(wgpt.Error), wgpt.train(preset="nope"):
            pass

    def test_a_missing_program_is_an_error(self) -> None:
        for name, message in [("", "wgpt: no such program"), ("nowhere/wgpt", "nowhere/wgpt: no such program")]:
            environment = mock.patch.dict(os.environ, WGPT=name, PATH="")
            scripts = mock.patch("sysconfig.get_path", return_value="nowhere")
            with environment, scripts, self.assertRaises(wgpt.Error) as raised:
                wgpt.train(preset="demo")
            self.assertEqual((raised.exception.message, raised.exception.exit_code), (message, None))

    def test_a_program_that_crashes_is_an_error(self) -> None:
        with mock.patch.dict(os.environ, {"WGPT": sys.executable}), self.assertRaises(wgpt.Error) as raised:
            wgpt.plan()
        self.assertEqual(raised.exception.message, "wgpt ended with exit code 2")


class Documentation(TestCase):
    def test_flags_without_a_value_are_known(self) -> None:
        found = set[str]()
        for command in ("train", "plan", "sample"):
            found.update(re.findall(r"^ +(?:-\w, )?--([\w-]+)(?:\.\.\.)?$", wgpt.run(command, "--help"), re.MULTILINE))
        # The functions give some of them. The others are for people.
        unused = {"help", "help-all", "json", "stop-on-close", "interactive", "targets"}
        self.assertEqual({flag.replace("_", "-") for flag in wgpt._SWITCHES}, found - unused)

    def test_the_examples_of_the_page_run(self) -> None:
        page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        os.environ.update({f"WGPT_{name.upper()}": str(value) for name, value in TINY.items()})
        # The page draws with other packages, which the tests do not need.
        matplotlib, ipython = mock.MagicMock(), mock.MagicMock()
        matplotlib.pyplot.subplots.return_value = mock.MagicMock(), mock.MagicMock()
        modules = {"matplotlib": matplotlib, "matplotlib.pyplot": matplotlib.pyplot}
        modules |= {"IPython": ipython, "IPython.display": ipython.display}
        output, names = io.StringIO(), dict[str, Any]()
        with mock.patch.dict(sys.modules, modules), contextlib.redirect_stdout(output):
            for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
                exec(code, names)  # noqa: S102, the page is ours
        self.assertEqual(names["iters"], [0, 20, 40])
        self.assertEqual(names["view"].update.call_count, 3)
        self.assertIn(f"{names['training'].run} {min(names['losses'])}\nIn the ", output.getvalue())


if __name__ == "__main__":
    unittest.main()

"""Checks with TensorBoard's own reader that the event files of a run hold what its events.jsonl holds.

    pip install tensorboard   # checked with 2.21.0
    python tests/reference/check_scalars.py RUN     # a run with --log=tensorboard
"""

import json
import math
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TRAIN_TAG = "loss"
VAL_TAG = "val_loss"


def recorded(run: Path) -> dict[str, dict[int, float]]:
    """The losses in events.jsonl. A resumed run repeats iterations: the last counts."""
    losses: dict[str, dict[int, float]] = {"train": {}, "val": {}}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            losses["train"][event["iter"]] = event["loss"]
        elif event["event"] == "eval":
            losses["val"][event["iter"]] = event["val_loss"]
    return losses


def main(run: Path) -> None:
    scalars = EventAccumulator(str(run), size_guidance={"scalars": 0})
    scalars.Reload()
    tags = scalars.Tags()["scalars"]
    for tag, kind in [(TRAIN_TAG, "train"), (VAL_TAG, "val")]:
        assert tag in tags, f"no {tag} among {tags}"
        read = {event.step: event.value for event in scalars.Scalars(tag)}
        expected = recorded(run)[kind]
        assert read.keys() == expected.keys(), f"{tag}: {sorted(read.keys() ^ expected.keys())} differ"
        for step, value in expected.items():
            assert math.isclose(read[step], value, rel_tol=1e-6), f"{tag} at {step}: {read[step]}, not {value}"
        print(f"{tag}: {len(read)} values as in events.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What checkpoints cost: the share of training time that is spent on saving them.

    python benchmarks/checkpoints.py [--models mlp,cnn,...] [--size 16] [--runs 10] [--every 1] [--json FILE]

Each model trains with a checkpoint every second, and its journal tells how long each took, on the disk of
the temporary directory. The overhead at the default interval is worked out from that: the mean of a save, by
the interval. That can come out low: where it said 0.43%, `--every 60 --runs 4`, which measures it as it is in
four minutes for each model, said 0.64%, and 2.1% while other work had the machine at a load of 8. The first
save of a process is read back once and takes the longest. Goal: under 2% of the training time.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from common import SPREAD_HEADING, Goal, Spread, arguments, carry_out, conclude, say

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.resumable_loop import EVERY_S
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.registry import models

GOAL_PERCENT = 2.0


def saves(config: TrainConfig) -> tuple[list[contract.Entry], int]:
    """The checkpoints of a training, and how many parameters it has."""
    from gpu_flows.training.loop import train

    with tempfile.TemporaryDirectory(prefix="gpu-flows-benchmark-") as folder:
        os.environ[contract.DIRECTORY] = folder
        result = train(config)
        return [
            entry for entry in contract.read_journal(Path(folder)) if entry.event == "saved"
        ], result.parameters


def main() -> int:
    parser = arguments(__doc__ or "", 10, "checkpoints saved of each model")
    parser.add_argument("--models", default=",".join(models.names()), help="names, by commas")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two checkpoints here")
    asked = parser.parse_args()
    goals, details = [], {}
    print(f"size {asked.size}; seconds for a checkpoint, overhead at {EVERY_S:g} s between two")
    print(f"{'model':<13}{'parameters':>11}{'MB':>7} {SPREAD_HEADING}{'overhead':>10}")
    for model in asked.models.split(","):
        say(model)
        config = TrainConfig(
            model=model,
            size=asked.size,
            epochs=1_000_000,
            seconds=asked.every * (asked.runs + 0.5),
            checkpoint_seconds=asked.every,
        )
        entries, parameters = saves(config)
        took = [entry.seconds for entry in entries]
        mean = sum(took) / len(took)
        percent = 100 * mean / (EVERY_S + mean)
        size = entries[-1].bytes / 1e6
        print(
            f"{model:<13}{parameters:>11,}{size:>7.1f} {Spread.of(took).text(digits=3)}{percent:>9.3f}%",
            flush=True,
        )
        details[model] = {"seconds": took, "bytes": entries[-1].bytes, "percent": percent}
        goals.append(Goal(f"{model}: share of the time spent on saving", percent, GOAL_PERCENT, "%"))
    return conclude(goals, details, asked.json)


if __name__ == "__main__":
    carry_out(main)

"""What checkpoints cost: the share of training time that is spent on saving them.

    python benchmarks/checkpoints.py [--models mlp,cnn,...] [--size 16] [--runs 10] [--every 1] [--json FILE]

Each model trains with a checkpoint every second, on the disk of the temporary directory; its journal records
how long each save took. The overhead at the default interval is computed from that: the mean time of a save,
divided by the interval. That may be too low: where it was 0.43%, `--every 60 --runs 4`, which measures it
directly in four minutes for each model, gave 0.64%, and 2.1% while other work caused a load of 8.
The first save of a process is read back once and takes longest. Goal: under 2% of the training time.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from common import SPREAD_HEADING, Goal, Spread, log_progress, make_parser, report, run_benchmark

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.resumable_loop import EVERY_S
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.registry import models

GOAL_PERCENT = 2.0


def main() -> int:
    parser = make_parser(__doc__ or "", 10, "checkpoints saved of each model")
    parser.add_argument("--models", default=",".join(models.names()), help="names, separated by commas")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two checkpoints here")
    options = parser.parse_args()
    print(f"size {options.size}; seconds for a checkpoint, overhead at {EVERY_S:g} s between two")
    print(f"{'model':<13}{'parameters':>11}{'MB':>7} {SPREAD_HEADING}{'overhead':>10}")
    overheads = {
        model: measure(model, options.size, options.every, options.runs)
        for model in options.models.split(",")
    }
    goals = [
        Goal(f"{model}: share of the time spent on saving", overhead["percent"], GOAL_PERCENT, "%")
        for model, overhead in overheads.items()
    ]
    return report(goals, overheads, options.json)


def measure(model: str, size: int, every_s: float, saves: int) -> dict[str, Any]:
    """Train a model, print its row of the table, and return what is kept of it in the JSON file."""
    log_progress(model)
    seconds = every_s * (saves + 0.5)
    config = TrainConfig(
        model=model, size=size, epochs=1_000_000, seconds=seconds, checkpoint_seconds=every_s
    )
    entries, parameters = train_with_checkpoints(config)
    took = [entry.seconds for entry in entries]
    mean = sum(took) / len(took)
    percent = 100 * mean / (EVERY_S + mean)
    megabytes = entries[-1].bytes / 1e6
    figures = f"{parameters:>11,}{megabytes:>7.1f} {Spread.of(took).text(digits=3)}{percent:>9.3f}%"
    print(f"{model:<13}{figures}", flush=True)
    return {"seconds": took, "bytes": entries[-1].bytes, "percent": percent}


def train_with_checkpoints(config: TrainConfig) -> tuple[list[contract.Entry], int]:
    """Return the journal's entries about saves, and the number of parameters of the model."""
    from gpu_flows.training.loop import train

    with tempfile.TemporaryDirectory(prefix="gpu-flows-benchmark-") as folder:
        os.environ[contract.DIRECTORY] = folder
        result = train(config)
        journal = contract.read_journal(Path(folder))
        return [entry for entry in journal if entry.event == "saved"], result.parameters


if __name__ == "__main__":
    run_benchmark(main)

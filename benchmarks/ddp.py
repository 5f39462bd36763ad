"""One process against two: samples per second and the loss, for every model, side by side.

    python benchmarks/ddp.py [--models mlp,cnn,...] [--steps 60] [--size 4] [--runs 2] [--json FILE]

Both train the same global batch on the CPU with one thread per process. They take turns, so that other load
on the machine affects both. Throughput counts training without the start; the better of the runs is shown.
The loss curves are compared step by step in the chosen precision. Goal: they never differ by more than the
tolerance, 1e-6 in float64 and 1e-3 in float32. The speed-up depends on the number of cores and has no goal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import Goal, log_progress, make_parser, report, run_benchmark

from gpu_flows.training.config import TrainConfig
from gpu_flows.training.registry import models

TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
EVERY_STEP = "from gpu_flows.training import launch; launch._SECONDS_BETWEEN_REPORTS = 0; launch.main()"


def train(config: TrainConfig, processes: int) -> tuple[float, list[float]]:
    """Return the samples per second, and the loss after each step."""
    with tempfile.TemporaryDirectory(prefix="gpu-flows-benchmark-") as folder:
        reports = Path(folder, "reports.jsonl")
        command = [sys.executable, "-c", EVERY_STEP, str(processes), config.model_dump_json()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        subprocess.run([*command, "--reports", reports], check=True, env=environment)
        lines: list[dict[str, Any]] = [json.loads(line) for line in reports.read_text().splitlines()]
    curve = [line["progress"]["loss"] for line in lines if "progress" in line]
    return lines[-1]["result"]["samples_per_second"], curve


def main() -> int:
    parser = make_parser(__doc__ or "", 2, "times each is trained")
    parser.add_argument("--models", default=",".join(models.names()), help="names, separated by commas")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precision", choices=sorted(TOLERANCE), default="float64")
    options = parser.parse_args()
    goals, details = [], {}
    print(f"size {options.size}, global batch {options.batch_size}, {options.precision}; samples per second")
    print(
        f"{'model':<14}{'1 process':>12}{'2 processes':>14}{'ratio':>8}{'largest difference of the loss':>34}"
    )
    for model in options.models.split(","):
        config = TrainConfig(
            model=model,
            size=options.size,
            batch_size=options.batch_size,
            steps=options.steps,
            epochs=1000,
            precision=options.precision,
        )
        speeds: dict[int, list[float]] = {1: [], 2: []}
        curves: dict[int, list[float]] = {}
        for run in range(options.runs):
            for processes in (1, 2):
                log_progress(f"{model}, {processes} process(es), run {run + 1} of {options.runs}")
                speed, curves[processes] = train(config, processes)
                speeds[processes].append(speed)
        one, two = max(speeds[1]), max(speeds[2])
        difference = max(abs(a - b) for a, b in zip(curves[1], curves[2], strict=True))
        print(f"{model:<14}{one:>12,.0f}{two:>14,.0f}{two / one:>8.2f}{difference:>34.1e}", flush=True)
        details[model] = {"one": one, "two": two, "apart": difference}
        share = difference / TOLERANCE[options.precision]
        goals.append(Goal(f"{model}: difference, as a share of the tolerance", share, 1.0))
    return report(goals, details, options.json)


if __name__ == "__main__":
    run_benchmark(main)

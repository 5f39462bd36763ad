"""Compares our own Adam with torch.optim.Adam, to decide which of them the training loop uses.

    python benchmarks/adam.py [--models mlp,cnn,...] [--size 1] [--runs 7] [--json FILE]

Three questions, each answered with the variants side by side and taking turns:

- start: CPU time and peak memory of a new process that imports torch and takes one optimizer step
- step: CPU time of the optimizer, and what a whole training step costs with it. Forward and backward pass do
  not depend on the optimizer: one median over all variants stands for them
- resume: whether the weights after an interruption equal those of an uninterrupted run, bit for bit

Times are CPU times of one thread, because other work often shares the machine. Ours is kept as long as a
whole training at the default settings, from the start of its process, costs less CPU time than with torch's
cheapest variant. "Steps to make up" states how many steps a training needs until the faster step of a variant
has made up for its slower start.
"""

from __future__ import annotations

import io
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from common import Goal, log_progress, make_parser, report, run_benchmark
from torch import nn

from gpu_flows.training.adam import Adam
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.registry import Recipe, models

LEARNING_RATE = 0.003
STEPS_PER_RUN = 40

VARIANTS: dict[str, Callable[[nn.Module], Any]] = {
    "ours": lambda network: Adam(network.parameters(), LEARNING_RATE),
    "for-loop": lambda network: torch.optim.Adam(network.parameters(), LEARNING_RATE, foreach=False),
    "foreach": lambda network: torch.optim.Adam(network.parameters(), LEARNING_RATE, foreach=True),
    "fused": lambda network: torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True),
    "AdamW fused": lambda network: torch.optim.AdamW(network.parameters(), LEARNING_RATE, fused=True),
}

START = """
import resource, time, torch
torch.set_num_threads(1)
network = torch.nn.Linear(2, 2)
{make}
network(torch.ones(1, 2)).sum().backward()
optimizer.step()
print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
STARTS = {
    "ours": "from gpu_flows.training.adam import Adam; optimizer = Adam(network.parameters(), 0.003)",
    "for-loop": "optimizer = torch.optim.Adam(network.parameters(), 0.003, foreach=False)",
    "foreach": "optimizer = torch.optim.Adam(network.parameters(), 0.003, foreach=True)",
    "fused": "optimizer = torch.optim.Adam(network.parameters(), 0.003, fused=True)",
    "AdamW fused": "optimizer = torch.optim.AdamW(network.parameters(), 0.003, fused=True)",
}


def measure_starts(runs: int) -> dict[str, tuple[float, float]]:
    """Return the median CPU seconds and MiB of a new process, by variant."""
    figures: dict[str, list[tuple[float, float]]] = {variant: [] for variant in STARTS}
    for _ in range(runs):
        for variant, make in STARTS.items():
            command = [sys.executable, "-c", START.format(make=make)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds, mebibytes = map(float, output.split())
            figures[variant].append((seconds, mebibytes))
    return {
        variant: (statistics.median(s for s, _ in pairs), statistics.median(m for _, m in pairs))
        for variant, pairs in figures.items()
    }


def measure_steps(model: str, size: int, runs: int) -> tuple[float, dict[str, float]]:
    """Return the median CPU seconds of forward and backward pass, and of the optimizer, by variant."""
    trainings = {variant: SmallTraining(model, size, make) for variant, make in VARIANTS.items()}
    for training in trainings.values():
        training.steps(5)
    passes: list[float] = []
    optimizers: dict[str, list[float]] = {variant: [] for variant in trainings}
    for _ in range(runs):
        for variant, training in trainings.items():
            for _ in range(STEPS_PER_RUN):
                seconds, optimizer_seconds = training.step()
                passes.append(seconds)
                optimizers[variant].append(optimizer_seconds)
    medians = {variant: statistics.median(seconds) for variant, seconds in optimizers.items()}
    return statistics.median(passes), medians


class SmallTraining:
    """The smallest loop that trains a shipped model on a fixed batch of 64."""

    def __init__(self, model: str, size: int, make: Callable[[nn.Module], Any]) -> None:
        torch.manual_seed(0)
        self.recipe: Recipe = models.get(model)(size, 64)
        self.optimizer = make(self.recipe.network)

    def step(self) -> tuple[float, float]:
        """Take one step; return the CPU seconds of forward and backward pass, and of the optimizer."""
        began = time.process_time()
        self.optimizer.zero_grad()
        loss = self.recipe.loss(self.recipe.network(self.recipe.inputs), self.recipe.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        passed = time.process_time()
        self.optimizer.step()
        return passed - began, time.process_time() - passed

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def resumes_exactly(model: str, size: int, make: Callable[[nn.Module], Any]) -> bool:
    """Return whether ten steps equal five steps, a checkpoint, and five more in a new training."""
    whole, first, second = (SmallTraining(model, size, make) for _ in range(3))
    whole.steps(10)
    first.steps(5)
    checkpoint = io.BytesIO()
    torch.save((first.recipe.network.state_dict(), first.optimizer.state_dict()), checkpoint)
    checkpoint.seek(0)
    network, optimizer = torch.load(checkpoint, weights_only=True)
    second.recipe.network.load_state_dict(network)
    second.optimizer.load_state_dict(optimizer)
    second.steps(5)
    pairs = zip(whole.recipe.network.parameters(), second.recipe.network.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def main() -> int:
    parser = make_parser(__doc__ or "", 7, "rounds, in each of which every variant has one turn")
    parser.add_argument("--models", default=",".join(models.names()), help="names, by commas")
    parser.add_argument("--size", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)

    log_progress("start of a process")
    starts = measure_starts(options.runs)
    show("start of a process", VARIANTS)
    show("  CPU seconds", [f"{starts[variant][0]:.2f}" for variant in VARIANTS])
    show("  peak MiB", [f"{starts[variant][1]:.0f}" for variant in VARIANTS])
    goals, default_steps = [], count_default_steps()
    details: dict[str, Any] = {"start": starts}

    for model in options.models.split(","):
        log_progress(model)
        passes, optimizers = measure_steps(model, options.size, options.runs)
        steps = {variant: passes + seconds for variant, seconds in optimizers.items()}
        exact = {variant: resumes_exactly(model, options.size, make) for variant, make in VARIANTS.items()}
        show(model, [""] * len(VARIANTS))
        show("  optimizer, ms", [f"{1e3 * optimizers[variant]:.3f}" for variant in VARIANTS])
        show("  whole step, ms", [f"{1e3 * steps[variant]:.3f}" for variant in VARIANTS])
        show("  whole step / ours", [f"{steps[variant] / steps['ours']:.2f}" for variant in VARIANTS])
        show("  resumes exactly", ["yes" if exact[variant] else "NO" for variant in VARIANTS])
        show("  steps to make up", [steps_to_make_up(starts, steps, variant) for variant in VARIANTS])
        totals = {variant: starts[variant][0] + default_steps * steps[variant] for variant in VARIANTS}
        cheapest = min(seconds for variant, seconds in totals.items() if variant != "ours")
        goals.append(Goal(f"{model}: {default_steps} steps, ours / torch", totals["ours"] / cheapest, 1.0))
        details[model] = {"passes": passes, "optimizers": optimizers, "resumes_exactly": exact}
    return report(goals, details, options.json)


def count_default_steps() -> int:
    config = TrainConfig()
    return config.epochs * math.ceil(config.samples / config.batch_size)


def steps_to_make_up(
    starts: Mapping[str, tuple[float, float]], steps: Mapping[str, float], variant: str
) -> str:
    faster_by = steps["ours"] - steps[variant]
    return f"{(starts[variant][0] - starts['ours'][0]) / faster_by:,.0f}" if faster_by > 0 else "never"


def show(label: str, cells: Iterable[str]) -> None:
    print(f"{label:<20}" + "".join(f"{cell:>13}" for cell in cells), flush=True)


if __name__ == "__main__":
    run_benchmark(main)

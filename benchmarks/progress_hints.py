"""Measures how well the remaining time of a job is read from eleven kinds of output.

    python benchmarks/progress_hints.py [--runs 20] [--seed 0] [--check]

Each kind is a job that prints as its framework does, on a virtual clock: a slow start, slow first steps,
noise in every step, evaluation after each epoch, and in every fourth run a speed that changes half-way. The
table shows the median error of the remaining time, |predicted - true| / true, after 10, 25, 50 and 75 % of
the run time; `told` is the share of these moments at which the output had told any progress, `covered` that
of the estimates whose 90th percentile was not exceeded. No prediction from before the run is used. The last
lines show the time that reading a line takes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_flows.schedulers.prediction.job_progress import JobProgress
from gpu_flows.schedulers.prediction.remaining_time import RemainingTime

MOMENTS = (0.10, 0.25, 0.50, 0.75)
MOST_ERROR = {0.10: 0.15, 0.25: 0.12, 0.50: 0.08, 0.75: 0.06}  # goals for the median over all kinds
MOST_US = 2.0  # for a line without progress
BAR = "█████▌    "


@dataclass
class Run:
    """One run of a job with random properties, and the clock of it."""

    seed: int
    now: float = 0.0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.epochs, self.steps = self.random.randint(4, 20), self.random.randint(50, 400)
        self.step_s = self.random.uniform(0.05, 1.0)
        self.start_s = self.random.uniform(2, 40)
        self.eval_s = self.random.uniform(0.05, 0.25) * self.steps * self.step_s
        self.change = self.random.choice((0.6, 1.7)) if self.seed % 4 == 3 else 1.0
        self.done = 0
        self.now = self.start_s

    def step(self) -> None:
        """Let one step pass: the first twenty are slower."""
        warm_up = 4.0 if self.done < 3 else 1.5 if self.done < 20 else 1.0
        change = self.change if self.done > self.epochs * self.steps / 2 else 1.0
        self.now += self.step_s * warm_up * change * self.random.lognormvariate(0, 0.15)
        self.done += 1

    def evaluate(self) -> None:
        self.now += self.eval_s * self.random.lognormvariate(0, 0.1)

    def loss(self) -> str:
        return f"{self.random.uniform(0.1, 3):.4f}"


Lines = Iterator[str]


def bar(done: int, total: int) -> str:
    return f"{100 * done // total:3d}%|{BAR}| {done}/{total} [00:12<00:15,  7.20it/s]"


def tqdm_whole(run: Run) -> Lines:
    total = run.epochs * run.steps
    for step in range(total):
        run.step()
        yield f"\r{bar(step + 1, total)}"
        if (step + 1) % run.steps == 0:
            run.evaluate()


def tqdm_nested(run: Run) -> Lines:
    for epoch in range(run.epochs):
        yield f"Epochs: {bar(epoch, run.epochs)}"
        for step in range(run.steps):
            run.step()
            yield f"Batches: {bar(step + 1, run.steps)}"
        for part in range(5):
            run.now += run.eval_s / 5
            yield f"Validation: {bar(part + 1, 5)}"


def epoch_lines(run: Run) -> Lines:
    for epoch in range(run.epochs):
        for _ in range(run.steps):
            run.step()
        run.evaluate()
        yield f"Epoch {epoch + 1}/{run.epochs} train_loss {run.loss()} accuracy 812/1000"


def epoch_and_step(run: Run) -> Lines:
    for epoch in range(run.epochs):
        for step in range(run.steps):
            run.step()
            if step % 10 == 9:
                yield f"Epoch [{epoch + 1}/{run.epochs}], Step [{step + 1}/{run.steps}], Loss: {run.loss()}"
        run.evaluate()
        yield f"Test set: Average loss: {run.loss()}, Accuracy: 9831/10000 (98%)"


def lightning(run: Run) -> Lines:
    yield f"Trainer(max_epochs={run.epochs})"
    for epoch in range(run.epochs):
        for step in range(run.steps):
            run.step()
            yield f"\rEpoch {epoch}: {bar(step + 1, run.steps)}"
        run.evaluate()
        yield f"\rValidation DataLoader 0: {bar(10, 10)}"


def hugging_face(run: Run) -> Lines:
    total = run.epochs * run.steps
    yield f"  Num Epochs = {run.epochs}"
    yield f"  Total optimization steps = {total:,}"
    for step in range(total):
        run.step()
        yield f"\r{bar(step + 1, total)}"
        if step % 50 == 49:
            yield f"{{'loss': {run.loss()}, 'learning_rate': 1e-05, 'epoch': {(step + 1) / run.steps:.2f}}}"
        if (step + 1) % run.steps == 0:
            run.evaluate()
            yield f"\r{bar(10, 10)}"


def hugging_face_log_only(run: Run) -> Lines:
    yield f"  Num Epochs = {run.epochs}"
    for step in range(run.epochs * run.steps):
        run.step()
        if step % 50 == 49:
            yield f"{{'loss': {run.loss()}, 'learning_rate': 1e-05, 'epoch': {(step + 1) / run.steps:.2f}}}"
        if (step + 1) % run.steps == 0:
            run.evaluate()


def keras(run: Run) -> Lines:
    for epoch in range(run.epochs):
        yield f"Epoch {epoch + 1}/{run.epochs}"
        for step in range(run.steps):
            run.step()
            yield f"\r{step + 1:3d}/{run.steps} [=====>......] - ETA: 2s - loss: {run.loss()}"
        run.evaluate()


def iterations(run: Run) -> Lines:
    total = run.epochs * run.steps
    for step in range(total):
        run.step()
        if step % 20 == 0:
            yield f"2026-11-18 02:47:11 INFO iter {step}/{total}: loss {run.loss()}, time 120ms"
        if (step + 1) % run.steps == 0:
            run.evaluate()
            yield f"val step 10/10 loss {run.loss()}"


def fastai(run: Run) -> Lines:
    yield "epoch     train_loss  valid_loss  accuracy  time"
    for epoch in range(run.epochs):
        for _ in range(run.steps):
            run.step()
        run.evaluate()
        yield f"{epoch}         {run.loss()}    {run.loss()}    0.8812    00:12"


def percent(run: Run) -> Lines:
    total = run.epochs * run.steps
    for step in range(total):
        run.step()
        if step % run.steps == 0:
            run.evaluate()
        if step % max(1, total // 40) == 0:
            yield f"Progress: {100 * step / total:.1f}%"


KINDS: dict[str, tuple[Callable[[Run], Lines], bool]] = {
    "tqdm, one bar": (tqdm_whole, False),
    "tqdm, nested bars": (tqdm_nested, False),
    "Epoch 3/10, at its end": (epoch_lines, False),
    "Epoch [3/10], Step [20/500]": (epoch_and_step, False),
    "Lightning": (lightning, False),
    "Hugging Face trainer": (hugging_face, False),
    "Hugging Face, log only": (hugging_face_log_only, False),
    "Keras": (keras, False),
    "iter 20/500": (iterations, False),
    "fastai table + epochs=": (fastai, True),  # the number of epochs is in the run's parameters
    "Progress: 45%": (percent, False),
}


class Judged(NamedTuple):
    """An estimate of the remaining time beside the true one."""

    error: float
    covered: bool  # whether the 90th percentile was not exceeded


def measure_run(emit: Callable[[Run], Lines], knows_epochs: bool, seed: int) -> dict[float, Judged | None]:
    """Return how good the remaining time is at each moment; None where nothing was told."""
    run = Run(seed)
    lines = [(run.now, line) for line in emit(run)]
    end = run.now
    progress = JobProgress({"epochs": run.epochs} if knows_epochs else {})
    remaining = RemainingTime(0.0)
    judged: dict[float, Judged | None] = {}
    moments = [share * end for share in MOMENTS]
    for told_at, line in [*lines, (end, "")]:
        while moments and moments[0] <= told_at:
            now = moments.pop(0)
            found = remaining.estimate(now)
            true = end - now
            moment = MOMENTS[len(MOMENTS) - len(moments) - 1]
            error = abs(found.value - true) / true if found else 0.0
            judged[moment] = Judged(error, true <= found.upper) if found else None
        if point := progress.read(line):
            if point.fraction is None:
                remaining.forget()
            else:
                remaining.add(told_at, point.fraction)
    return judged


def measure_reading(line: str) -> float:
    """Return how many microseconds it takes to read the line."""
    progress, rounds = JobProgress(), 20_000
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(rounds):
            progress.read(line)
        best = min(best, (time.perf_counter() - began) / rounds)
    return 1e6 * best


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    table: dict[str, dict[float, float]] = {}
    shares: dict[str, tuple[float, float]] = {}  # told, covered
    for kind, (emit, knows_epochs) in KINDS.items():
        runs = [measure_run(emit, knows_epochs, options.seed + number) for number in range(options.runs)]
        table[kind] = {
            moment: statistics.median([one.error for run in runs if (one := run[moment])] or [math.nan])
            for moment in MOMENTS
        }
        told = [one for run in runs for one in run.values() if one]
        covered = sum(one.covered for one in told) / max(1, len(told))
        shares[kind] = len(told) / (len(runs) * len(MOMENTS)), covered
    overall = {moment: statistics.median(row[moment] for row in table.values()) for moment in MOMENTS}
    reading = {line: measure_reading(line) for line in ("loss 0.31 lr 1e-4", "saved /data/runs/a.pt of run")}
    if options.json:
        print(json.dumps({"error": table, "shares": shares, "median": overall, "us": reading}, indent=2))
    else:
        heading = "".join(f"{moment:>8.0%}" for moment in MOMENTS)
        print(f"{'error of the remaining time':32}{heading}    told covered")
        for kind, row in table.items():
            errors = "".join(f"{row[moment]:8.1%}" for moment in MOMENTS)
            print(f"{kind:32}{errors}" + "".join(f"{share:8.0%}" for share in shares[kind]))
        print(f"{'median of all kinds':32}" + "".join(f"{overall[moment]:8.1%}" for moment in MOMENTS))
        for line, us in reading.items():
            print(f"{us:.2f} us to pass over: {line}")
    reached = all(overall[moment] <= most for moment, most in MOST_ERROR.items())
    return int(options.check and not (reached and max(reading.values()) <= MOST_US))


if __name__ == "__main__":
    sys.exit(main())

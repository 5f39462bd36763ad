"""Measures how well the time of new jobs is predicted: amounts of work and GPU models that never ran.

    python benchmarks/durations_new_jobs.py [--throughputs FILE] [--noise 0.1] [--seed 0]

The true times come from Gavel's measured steps per second of seven families of networks on K80, P100 and V100
(by default those in tests/traces/gavel), for random numbers of steps, with a start-up of 30 s and noise. The
table shows the median of |predicted - true| / true:

- new amount: jobs of the same network and batch size ran on the same GPU model, with other numbers of steps;
- new GPU: such jobs ran on the other two models, some of them also on this one. The built-in ratios are from
  the same measurements, so those of the family in question are taken out first.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.gpu_speeds import (
    GAVEL_SPEEDS,
    Expected,
    change_by_bandwidth,
    change_by_table,
)
from gpu_flows.schedulers.traces.gavel import Throughputs, throughputs

DATA = Path(__file__).parents[1] / "tests" / "traces" / "gavel" / "solo_throughputs.json"
START_S = 30.0
KNOWN = (1, 2, 4, 8, 16)  # jobs that ran before


class Times:
    """The true times of jobs."""

    def __init__(self, measured: Throughputs, noise: float, seed: int) -> None:
        self._measured, self._noise, self.random = measured, noise, random.Random(seed)

    def kinds(self) -> list[str]:
        """The kinds that were measured on one device of every GPU model."""
        models = {model for _, model in self._measured}
        kinds = dict.fromkeys(kind for kind, _ in self._measured)
        return [
            kind for kind in kinds if all(self._measured.get((kind, model), {}).get(1) for model in models)
        ]

    def draw(self, kind: str, gpu: str) -> tuple[JobFeatures, float]:
        """Return a job with a random number of steps that takes minutes to hours, and its time."""
        rate = self._measured[kind, gpu][1]
        steps = max(1, round(math.exp(self.random.uniform(math.log(300), math.log(30_000))) * rate))
        noise = self.random.lognormvariate(0, self._noise)
        name, _, batch = kind.removesuffix(")").partition(" (batch size ")
        parameters = {"model": name, "steps": steps, **({"batch_size": int(batch)} if batch else {})}
        return JobFeatures("train", "", "ana", 1, parameters), START_S + noise * steps / rate


def measure_amounts(times: Times, known: int) -> Iterator[float]:
    """Yield the error for a new amount of work after this many jobs with other amounts."""
    for kind in times.kinds():
        for gpu in ("k80", "p100", "v100"):
            predictor = DurationPredictor()
            for _ in range(known):
                job, seconds = times.draw(kind, gpu)
                predictor.learn(job, gpu, 1, seconds)
            yield _error(predictor, times, kind, gpu)


def measure_gpus(times: Times, here: int, ratios: Callable[[str], Expected]) -> Iterator[float]:
    """Yield the error on a GPU model on which this many like jobs ran, after eight on each other model."""
    for kind in times.kinds():
        for gpu in ("k80", "p100", "v100"):
            predictor = DurationPredictor(ratios(kind.partition(" (")[0].lower()))
            for other in ("k80", "p100", "v100"):
                for _ in range(here if other == gpu else 8):
                    job, seconds = times.draw(kind, other)
                    predictor.learn(job, other, 1, seconds)
            yield _error(predictor, times, kind, gpu)


def no_ratios(family: str) -> Expected:
    return lambda _, source, target: 0.0


def by_bandwidth(family: str) -> Expected:
    return lambda _, source, target: change_by_bandwidth(source, target)


def by_other_families(family: str) -> Expected:
    others = {name: speeds for name, speeds in GAVEL_SPEEDS.items() if name != family}
    return lambda _, source, target: change_by_table("", source, target, others) or 0.0


RATIOS = {
    "no ratios": no_ratios,
    "bandwidths of the data sheets": by_bandwidth,
    "measured, of other families": by_other_families,
}


def _error(predictor: DurationPredictor, times: Times, kind: str, gpu: str) -> float:
    job, seconds = times.draw(kind, gpu)
    found = predictor.estimate(job, gpu, 1)
    assert found is not None
    return abs(found.value - seconds) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--throughputs", type=Path, default=DATA, help="one of Gavel's throughput files")
    parser.add_argument("--noise", type=float, default=0.1, help="sigma of the lognormal noise of each time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    times = Times(throughputs(json.loads(options.throughputs.read_bytes())), options.noise, options.seed)
    print(f"{'new amount of work, after':44}" + "".join(f"{known:>8}" for known in KNOWN) + "  jobs")
    errors = [statistics.median(measure_amounts(times, known)) for known in KNOWN]
    print(f"{'  median error':44}" + "".join(f"{error:8.1%}" for error in errors))
    print(f"{'new GPU model, with so many jobs on it':44}" + "".join(f"{here:>8}" for here in (0, *KNOWN)))
    for name, ratios in RATIOS.items():
        errors = [statistics.median(measure_gpus(times, here, ratios)) for here in (0, *KNOWN)]
        print(f"  {name:42}" + "".join(f"{error:8.1%}" for error in errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())

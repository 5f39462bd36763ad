"""Measures how well the durations of a trace's jobs are predicted, beside means and medians.

    python benchmarks/durations.py philly_82k.csv [--held-out 0.36] [--limit N] [--check]

Each job is predicted when it is submitted, from the jobs that had ended by then; it ends its duration after
its submission, as if it had not waited. The first part of the trace only teaches. Of the held-out last part,
the table shows for each way to predict:

- error: the median of |predicted - true| / true, of the predicted median;
- factor: the median of how many times too long or too short the predicted median is;
- coverage: the share of jobs that took no longer than the predicted 90th percentile (0.9 is perfect);
- width: how many times the predicted median that percentile is, in the median.

A mean has no percentile; its coverage is that of a job's mean plus 1.28 standard deviations. The file may
have any format that `gpu-flows simulate` reads, also compressed. Traces have no parameters, so this measures
only the history of users, kinds and sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple, Protocol

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.traces.reading import read
from gpu_flows.schedulers.traces.table import TraceError
from gpu_flows.schedulers.workload import Arrival

LEAST_COVERAGE, MOST_COVERAGE = 0.85, 0.95
SHORTEST_S = 1.0
NORMAL_P90 = 1.2816  # standard deviations above the mean


class Prediction(NamedTuple):
    median: float
    p90: float
    true: float


class Predictor(Protocol):
    def predict(self, job: Job) -> tuple[float, float] | None: ...

    def learn(self, job: Job, seconds: float) -> None: ...


class Ours:
    def __init__(self) -> None:
        self._predictor = DurationPredictor()

    def predict(self, job: Job) -> tuple[float, float] | None:
        found = self._predictor.estimate(self._features(job), "", job.gpus)
        return (found.value, found.upper) if found else None

    def learn(self, job: Job, seconds: float) -> None:
        self._predictor.learn(self._features(job), "", job.gpus, seconds)

    def _features(self, job: Job) -> JobFeatures:
        return JobFeatures(flow=_kind(job), user=job.user, gpus=job.gpus)


class Mean:
    """The mean of the earlier jobs of a group."""

    def __init__(self, group: Callable[[Job], object]) -> None:
        self._group = group
        self._sums: dict[object, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))

    def predict(self, job: Job) -> tuple[float, float] | None:
        count, total, squares = self._sums[self._group(job)]
        if not count:
            return None
        mean = total / count
        return mean, mean + NORMAL_P90 * math.sqrt(max(0.0, squares / count - mean * mean))

    def learn(self, job: Job, seconds: float) -> None:
        count, total, squares = self._sums[self._group(job)]
        self._sums[self._group(job)] = count + 1, total + seconds, squares + seconds * seconds


class Median:
    """The median and 90th percentile of all earlier jobs of a group."""

    def __init__(self, group: Callable[[Job], object]) -> None:
        self._group = group
        self._seen: dict[object, list[float]] = defaultdict(list)

    def predict(self, job: Job) -> tuple[float, float] | None:
        seen = self._seen[self._group(job)]
        return (seen[len(seen) // 2], seen[9 * len(seen) // 10]) if seen else None

    def learn(self, job: Job, seconds: float) -> None:
        insort(self._seen[self._group(job)], seconds)


def _kind(job: Job) -> str:
    """Return the kind of a job; in a trace without kinds, the processors, main memory and device memory that
    it asks for. Jobs of one program ask for the same."""
    request = (job.cpus, job.ram_mb, job.memory_mb)
    return job.kind or (str(request) if any(request) else "")


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "mean of all jobs": lambda: Mean(lambda job: None),
    "mean of the user": lambda: Mean(lambda job: job.user),
    "mean of user and size": lambda: Mean(lambda job: (job.user, _kind(job), job.gpus)),
    "median of the user": lambda: Median(lambda job: job.user),
    "median of user and size": lambda: Median(lambda job: (job.user, _kind(job), job.gpus)),
    "gpu-flows": Ours,
}


def predict_in_order(
    arrivals: Iterable[Arrival], held_out_from: float, predictor: Predictor
) -> list[Prediction]:
    """Predict the held-out jobs one after the other, each from the jobs that had ended before."""
    running: list[tuple[float, int, Arrival]] = []
    predictions = []
    for number, arrival in enumerate(arrivals):
        now, job = arrival.job.submitted, arrival.job
        while running and running[0][0] <= now:
            ended = heappop(running)[2]
            predictor.learn(ended.job, ended.duration_s)
        if now >= held_out_from and (found := predictor.predict(job)):
            predictions.append(Prediction(*found, arrival.duration_s))
        heappush(running, (now + arrival.duration_s, number, arrival))
    return predictions


def judge(predictions: list[Prediction]) -> dict[str, float]:
    def factor(one: Prediction) -> float:
        return math.exp(abs(math.log(max(one.median, SHORTEST_S) / max(one.true, SHORTEST_S))))

    errors = [abs(one.median - one.true) / max(one.true, SHORTEST_S) for one in predictions]
    return {
        "jobs": len(predictions),
        "error": statistics.median(errors),
        "factor": statistics.median(map(factor, predictions)),
        "mean_log_error": statistics.mean(math.log(factor(one)) for one in predictions),
        "coverage": sum(one.true <= one.p90 for one in predictions) / len(predictions),
        "width": statistics.median(one.p90 / max(one.median, SHORTEST_S) for one in predictions),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="a trace file")
    parser.add_argument("--held-out", type=float, default=0.36, help="share of the jobs that are predicted")
    parser.add_argument("--limit", type=int, help="read only this many jobs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    try:
        arrivals = sorted(read(options.trace), key=lambda arrival: arrival.job.submitted)[: options.limit]
    except (TraceError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    first = arrivals[min(len(arrivals) - 1, round((1 - options.held_out) * len(arrivals)))]
    results: dict[str, dict[str, float]] = {}
    for name, make in PREDICTORS.items():
        began = time.process_time()
        results[name] = judge(predict_in_order(arrivals, first.job.submitted, make()))
        results[name]["microseconds_per_job"] = 1e6 * (time.process_time() - began) / len(arrivals)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        days = (arrivals[-1].job.submitted - first.job.submitted) / 86_400
        jobs = results["gpu-flows"]["jobs"]
        print(f"{jobs:,.0f} jobs of the last {days:.0f} days of {options.trace.name}\n")
        print(f"{'':24}{'error':>8}{'factor':>8}{'coverage':>10}{'width':>8}{'us/job':>8}")
        for name, figures in results.items():
            print(
                f"{name:24}{figures['error']:8.2f}{figures['factor']:8.2f}{figures['coverage']:10.3f}"
                f"{figures['width']:8.1f}{figures['microseconds_per_job']:8.0f}"
            )
    return int(options.check and not _goals_reached(results))


def _goals_reached(results: dict[str, dict[str, float]]) -> bool:
    """Return whether we err less than the mean of the user, and the 90th percentile holds for nine in ten."""
    ours, user = results["gpu-flows"], results["mean of the user"]
    return ours["error"] < user["error"] and LEAST_COVERAGE <= ours["coverage"] <= MOST_COVERAGE


if __name__ == "__main__":
    sys.exit(main())

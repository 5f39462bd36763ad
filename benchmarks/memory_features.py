"""Predicts memory from declared features, beside SchedTune's random forest on SchedTune's own profile.

    python benchmarks/memory_features.py model_stats.csv [--check] [--runs 5] [--json FILE]

model_stats.csv is SchedTune's profile (github.com/Stone-ResearchLife/Scheduler-SchedTune-CCGrid-2022): 12
CNNs with 4 batch sizes on 5 GPU models, 240 measured peaks. Both predictors see the same splits: 10 folds
(--runs shuffles), one network left out, one GPU model left out. The random forest is scikit-learn's, with the
features of SchedTune's predictor (activations, parameters, input, memory bandwidth, CUDA cores, SM count).
`broken` is the share of jobs above the stated upper bound; the forest states none. With --check the exit code
is 1 if a goal is missed. It takes some minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
from common import Goal, log_progress, make_parser, report, run_benchmark
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold

from gpu_flows.prediction.memory_fitting import MeasuredJob, fit
from gpu_flows.prediction.memory_profile import default_model, read_csv
from gpu_flows.schedulers.prediction.estimate import Estimate

Jobs = list[MeasuredJob]
Split = Iterator[tuple[Jobs, Jobs]]
Predictor = Callable[[Jobs, Jobs, int], list[Estimate]]
PREDICTIONS = 200  # timed


class Figures(NamedTuple):
    """Of the predictions for all jobs, each made by a model that did not see it. Percent."""

    mape: float
    p95: float
    worst_under: float
    worst_over: float
    broken: float


def split_folds(jobs: Jobs, seed: int) -> Split:
    for train, test in KFold(10, shuffle=True, random_state=seed).split(jobs):
        yield [jobs[number] for number in train], [jobs[number] for number in test]


def split_networks(jobs: Jobs, seed: int) -> Split:
    return _split_groups(jobs, [job.network for job in jobs])


def split_gpus(jobs: Jobs, seed: int) -> Split:
    return _split_groups(jobs, [str(job.features.gpu) for job in jobs])


def _split_groups(jobs: Jobs, groups: Sequence[str]) -> Split:
    for name in sorted(set(groups)):
        pairs = list(zip(jobs, groups, strict=True))
        yield [job for job, group in pairs if group != name], [job for job, group in pairs if group == name]


def predict_with_ours(train: Jobs, test: Jobs, seed: int) -> list[Estimate]:
    model = fit(train)
    return [model.predict(job.features) for job in test]


def predict_with_forest(train: Jobs, test: Jobs, seed: int) -> list[Estimate]:
    forest = RandomForestRegressor(n_estimators=100, random_state=seed)
    forest.fit([_forest_features(job) for job in train], [job.peak_mib for job in train])
    found = forest.predict([_forest_features(job) for job in test])
    return [Estimate(value, value, "features") for value in found]


def _forest_features(job: MeasuredJob) -> list[float]:
    features, gpu = job.features, job.features.gpu
    assert features.activations_mib
    assert features.input_mib
    assert gpu
    sizes = [features.activations_mib, features.parameters_mib, features.input_mib]
    return [*sizes, gpu.bandwidth_gb_s, gpu.cuda_cores, gpu.sms]


def judge(split: Split, predict: Predictor, seed: int) -> Figures:
    errors, broken = [], []
    for train, test in split:
        for job, found in zip(test, predict(train, test, seed), strict=True):
            errors.append(100 * (found.value / job.peak_mib - 1))
            broken.append(100 * (found.upper < job.peak_mib))
    sizes = np.abs(errors)
    return Figures(
        float(sizes.mean()), float(np.quantile(sizes, 0.95)), -min(errors), max(errors), fmean(broken)
    )


SPLITS = {"10 folds": split_folds, "network left out": split_networks, "GPU left out": split_gpus}
PREDICTORS = {"ours": predict_with_ours, "random forest": predict_with_forest}


def measure_ms(jobs: Jobs) -> float:
    """The median time of one prediction with the model of the package."""
    model = default_model()
    times = []
    for number in range(PREDICTIONS):
        start = time.perf_counter()
        model.predict(jobs[number % len(jobs)].features)
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


def main() -> int:
    parser = make_parser(__doc__ or "", 5, "shuffles of the 10 folds")
    parser.add_argument("csv", type=Path, help="SchedTune's model_stats.csv")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    jobs = read_csv(options.csv)
    found: dict[tuple[str, str], list[Figures]] = {}
    for split_name, split in SPLITS.items():
        for name, predict in PREDICTORS.items():
            runs = options.runs if split is split_folds or name == "random forest" else 1
            log_progress(f"{split_name}: {name}, {runs} time{'s' if runs > 1 else ''}")
            found[split_name, name] = [judge(split(jobs, seed), predict, seed) for seed in range(runs)]
    print(
        f"{'split':<18}{'predictor':<15}{'MAPE %':>16}{'p95 %':>8}{'under %':>9}{'over %':>8}{'broken %':>10}"
    )
    for (split_name, name), figures in found.items():
        mape = f"{_mean(figures, 'mape'):.2f} ± {pstdev(each.mape for each in figures):.2f}"
        broken = f"{_mean(figures, 'broken'):.2f}" if name == "ours" else "-"
        cells = [
            _mean(figures, "p95"),
            max(each.worst_under for each in figures),
            _mean(figures, "worst_over"),
        ]
        row = f"{mape:>16}{cells[0]:>8.1f}{cells[1]:>9.1f}{cells[2]:>8.1f}{broken:>10}"
        print(f"{split_name:<18}{name:<15}{row}")
    took_ms = measure_ms(jobs)
    network, folds = found["network left out", "ours"], found["10 folds", "ours"]
    goals = [
        Goal("network left out: mean error", _mean(network, "mape"), 8, "%"),
        Goal("network left out: worst under-prediction", max(each.worst_under for each in network), 20, "%"),
        Goal("network left out: bounds broken", _mean(network, "broken"), 2, "%"),
        Goal("10 folds: mean error", _mean(folds, "mape"), 4, "%"),
        Goal("one prediction", took_ms, 50, " ms"),
    ]
    details: dict[str, Any] = {f"{a}, {b}": [each._asdict() for each in f] for (a, b), f in found.items()}
    missed = report(goals, details, options.json)
    return missed if options.check else 0


def _mean(figures: Sequence[Figures], name: str) -> float:
    return fmean(getattr(each, name) for each in figures)


if __name__ == "__main__":
    run_benchmark(main)

"""Predicts how long a job will be on its devices, from jobs that have ended.

Earlier jobs are grouped from wide to narrow: all, those of a flow, a size, a user, a user and size, a flow
with a model and size, with the same unit of work, and with exactly the same parameters. Each group is a
distribution of durations in which newer jobs weigh more. The narrowest group with n jobs gets n / (n + prior)
of the answer, the next wider one the same share of what is left: few observations borrow from the wider
group, many do not. Users repeat what they did last, so their latest jobs are a group of their own, beside all
that are remembered of them. One job does not show how much like jobs differ, so the 90th percentile stays
above the median by a spread that shrinks with their number.

- Jobs that state an amount of work (epochs, steps, samples) are fitted by `fixed + rate * amount`, so that
  the time of an amount that was never seen follows from others (`work_rates`).
- A duration on another GPU model is multiplied by the ratio of the two models, learned from jobs of the same
  kind on both, and expected from measurements and data sheets before that (`gpu_speeds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.gpu_speeds import Expected, SpeedRatios, expected_change
from gpu_flows.schedulers.prediction.run_parameters import digest, flatten
from gpu_flows.schedulers.prediction.weighted_quantiles import FadingHistogram, find_quantiles
from gpu_flows.schedulers.prediction.work_amount import Work, find_model, find_work
from gpu_flows.schedulers.prediction.work_rates import WorkRate

SHORTEST_S = 0.01
TRANSFERRED = 0.5  # the weight of an observation on another GPU model, beside one on the model in question
NEGLIGIBLE = 0.01  # wider groups than those that share the other 99 % are not asked
MOST_GROUPS = 20_000  # beyond this the groups that were used least recently are dropped
QUANTILES = (0.5, 0.9)
P90 = 1.2816  # standard deviations from the median to the 90th percentile
SPREAD = 0.4  # standard deviation of the log durations of like jobs, as far as one of them can tell
EXACT, WORK = "same parameters", "time per unit of work"


class Level(NamedTuple):
    """A way to group jobs."""

    name: str
    prior: float  # how many jobs of the group weigh as much as all wider groups together
    half_life: float  # after so many newer jobs of the group, a job counts half


# Chosen on September and October 2017 of the Philly trace, among settings tried on later months before.
LEVELS = {
    level.name: level
    for level in (
        Level("all", 1.0, 500.0),
        Level("flow", 2.0, 200.0),
        Level("size", 2.0, 200.0),
        Level("user", 2.0, 100.0),
        Level("user and size", 2.0, 300.0),
        Level("latest of the user", 12.0, 5.0),
        Level("flow, model and size", 2.0, 50.0),
        Level(EXACT, 0.5, 20.0),
    )
}
WORK_PRIOR = 0.5

Key = tuple[str, ...]  # the name of a level, and what its jobs have in common


class DurationPredictor:
    """Learns from jobs that have ended, and answers in microseconds.

    An estimate's `value` is the median, and its `upper` the 90th percentile: one job in ten takes longer.
    (For memory, `upper` is a bound that at most one job in fifty exceeds.)"""

    def __init__(self, expected_change: Expected = expected_change) -> None:
        self._groups: dict[Key, dict[str, FadingHistogram]] = {}  # by GPU model
        self._rates: dict[Key, dict[str, WorkRate]] = {}
        self._means: dict[
            Key, dict[str, tuple[float, float]]
        ] = {}  # count and mean log duration, by GPU model
        self._ratios = SpeedRatios(expected_change)
        self.learned = 0

    # -- learn --------------------------------------------------------------------------------

    def learn(self, features: JobFeatures, gpu_model: str, gpus: int, seconds: float) -> None:
        """Learn that a job with these features took so long, on that many devices of the model."""
        if not (math.isfinite(seconds) and seconds >= 0):
            return
        features = _flat(features)
        duration = math.log(max(seconds, SHORTEST_S))
        work = find_work(features.parameters)
        self._learn_ratio(features, gpu_model, gpus, duration, work)
        for key in _keys(features, gpus):
            models = _touch(self._groups, key)
            if gpu_model not in models:
                models[gpu_model] = FadingHistogram(LEVELS[key[0]].half_life)
            models[gpu_model].add(duration)
        if work:
            rates = _touch(self._rates, _work_key(features, gpus, work))
            rates.setdefault(gpu_model, WorkRate()).add(work.amount, max(seconds, SHORTEST_S))
        self.learned += 1

    def _learn_ratio(
        self, features: JobFeatures, gpu_model: str, gpus: int, duration: float, work: Work | None
    ) -> None:
        """Compare the job with like ones on other GPU models: those with the same parameters, or of the same
        unit of work per amount."""
        if not gpu_model or not features.flow:
            return
        key = _work_key(features, gpus, work) if work else _exact_key(features, gpus)
        value = duration - math.log(work.amount) if work else duration
        models = _touch(self._means, key)
        for other, (_, mean) in models.items():
            if other != gpu_model:
                self._ratios.learn(_kind(features), other, gpu_model, value - mean)
        count, mean = models.get(gpu_model, (0.0, 0.0))
        models[gpu_model] = (min(count + 1.0, 20.0), mean + (value - mean) / min(count + 1.0, 20.0))

    # -- estimate -----------------------------------------------------------------------------

    def estimate(
        self, features: JobFeatures, gpu_model: str, gpus: int, ran_s: float = 0.0
    ) -> Estimate | None:
        """Return how long the job will take on that many devices of the model (empty: any). Of a job that
        has run for `ran_s` already, only those that took longer are asked. None if there are none."""
        features = _flat(features)
        left, points, asked = 1.0, list[tuple[float, float]](), list[tuple[float, str, float]]()
        for group in self._groups_from_narrow(features, gpu_model, gpus):
            share = left * group.count / (group.count + group.prior)
            points += group.points(share)
            asked.append((share, group.name, group.count))
            left -= share
            if left < NEGLIGIBLE:
                break
        if ran_s > 0:
            points = [point for point in points if point[0] > math.log(ran_s)]
        if not points:
            return None
        median, high = (math.exp(quantile) for quantile in find_quantiles(points, QUANTILES))
        _, name, count = max(asked)
        high = max(high, median * math.exp(P90 * SPREAD / max(1.0, count)))
        detail = f"{max(1, round(count))} earlier job(s), group: {name}"
        return Estimate(median, high, "features" if name == WORK else "history", detail)

    def _groups_from_narrow(
        self, features: JobFeatures, gpu_model: str, gpus: int
    ) -> Iterator[_Group | _WorkGroup]:
        """Iterate over the groups of the job that have members, from narrow to wide."""
        kind, family = _kind(features), find_model(features.parameters)

        def change(source: str) -> float:
            return self._ratios.change(kind, family, source, gpu_model)

        work = find_work(features.parameters)
        rates = self._rates.get(_work_key(features, gpus, work)) if work else None
        for key in reversed(_keys(features, gpus)):
            if work and rates and key[0] != EXACT:
                yield _WorkGroup(rates, work.amount, gpu_model, change)
                rates = None
            models = self._groups.get(key)
            if models:
                yield _Group(LEVELS[key[0]], models, gpu_model, change)

    # -- storage ------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything that was learned, as a JSON object that `from_json` reads."""
        return {
            "groups": [
                [list(key), {model: each.to_json() for model, each in models.items()}]
                for key, models in self._groups.items()
            ],
            "rates": [
                [list(key), {model: each.to_json() for model, each in models.items()}]
                for key, models in self._rates.items()
            ],
            "means": [[list(key), models] for key, models in self._means.items()],
            "ratios": self._ratios.to_json(),
            "learned": self.learned,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> DurationPredictor:
        predictor = cls()
        for key, models in stored["groups"]:
            half_life = LEVELS[key[0]].half_life
            predictor._groups[tuple(key)] = {
                model: FadingHistogram.from_json(bins, half_life) for model, bins in models.items()
            }
        for key, models in stored["rates"]:
            predictor._rates[tuple(key)] = {model: WorkRate.from_json(seen) for model, seen in models.items()}
        for key, means in stored["means"]:
            predictor._means[tuple(key)] = {model: (count, mean) for model, (count, mean) in means.items()}
        predictor._ratios = SpeedRatios.from_json(stored["ratios"])
        predictor.learned = stored["learned"]
        return predictor


class _Group:
    """Earlier jobs of one group, seen from a job that is to run on a GPU model."""

    def __init__(
        self,
        level: Level,
        models: Mapping[str, FadingHistogram],
        gpu_model: str,
        change: Callable[[str], float],
    ) -> None:
        self.name, self.prior, self._change = level.name, level.prior, change
        self._counts = {
            model: each.count * (1.0 if model == gpu_model or not gpu_model else TRANSFERRED)
            for model, each in models.items()
        }
        self._models = models
        self.count = sum(self._counts.values())

    def points(self, share: float) -> Iterator[tuple[float, float]]:
        """Iterate over log durations with weights that add up to the share."""
        for model, each in self._models.items():
            yield from each.points(share * self._counts[model] / self.count, self._change(model))


class _WorkGroup:
    """Earlier jobs with the same unit of work, and what their times say of another amount."""

    name, prior = WORK, WORK_PRIOR

    def __init__(
        self, rates: Mapping[str, WorkRate], amount: float, gpu_model: str, change: Callable[[str], float]
    ) -> None:
        self._points = [
            (duration + change(model), weight * (1.0 if model == gpu_model or not gpu_model else TRANSFERRED))
            for model, rate in rates.items()
            for duration, weight in rate.points(amount)
        ]
        self.count = sum(weight for _, weight in self._points)

    def points(self, share: float) -> Iterator[tuple[float, float]]:
        scale = share / self.count
        return ((duration, weight * scale) for duration, weight in self._points)


# -- groups -----------------------------------------------------------------------------------


def _flat(features: JobFeatures) -> JobFeatures:
    return replace(features, parameters=flatten(features.parameters)) if features.parameters else features


def _keys(features: JobFeatures, gpus: int) -> list[Key]:
    """Return the groups of the job, from wide to narrow."""
    flow, user, size = features.flow, features.user, str(gpus)
    keys: list[Key] = [("all",)]
    if flow:
        keys.append(("flow", flow))
    keys.append(("size", flow, size))
    if user:
        keys += [
            ("user", user),
            ("user and size", user, flow, size),
            ("latest of the user", user, flow, size),
        ]
    if flow:
        model = find_model(features.parameters)
        if model:
            keys.append(("flow, model and size", flow, model, size))
        keys.append(_exact_key(features, gpus))
    return keys


def _kind(features: JobFeatures) -> str:
    """Return what jobs that run alike have in common."""
    return f"{features.flow}/{find_model(features.parameters)}"


def _exact_key(features: JobFeatures, gpus: int) -> Key:
    return (EXACT, features.flow, features.deployment, str(gpus), digest(features.parameters))


def _work_key(features: JobFeatures, gpus: int, work: Work) -> Key:
    return (WORK, features.flow, find_model(features.parameters), str(gpus), work.unit)


M = TypeVar("M")


def _touch(groups: dict[Key, dict[str, M]], key: Key) -> dict[str, M]:
    """Return the group as the one used last. Beyond the limit the one not used for longest is dropped."""
    group = groups.pop(key, None)
    if group is None:
        group = {}
        if len(groups) >= MOST_GROUPS:
            del groups[next(iter(groups))]
    groups[key] = group
    return group

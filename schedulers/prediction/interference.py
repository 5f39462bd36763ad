"""How much longer jobs take because they share a device.

A slowdown of 1.4 means that a job takes 1.4 times as long as alone; 0.4 is its excess. What is known of the
excess that a kind of job suffers beside another one is used in this order:

1. this pair of kinds on this GPU model, as measured
2. this pair of kinds on any GPU model: the mean
3. a product: how sensitive the one kind is, times how much pressure the other exerts, times the usual excess
   on this GPU model, or on any if few pairs were measured on it. Both factors are fitted to all measured
   pairs of the kind; a kind that was never measured has those of its family (`ResNet-50 (batch size 64)` and
   `train resnet50` are of the family `resnet50`), or 1.
4. without any measurement: both jobs take turns, which is an excess of 1

Excesses of several neighbours add up: n jobs that take turns on a device each have an excess of n - 1, which
is the sum of n - 1 pairs.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.gpu_models import find_chip

TAKING_TURNS = 1.0  # the excess of a job that gets every second turn
LEAST = 0.1  # added to excesses before their logarithm is taken: many are 0
SHRINKAGE = 0.3  # measurements' worth of belief that a kind is like the others
LEAST_PAIRS = 30  # measured on a GPU model, for a fit of its own
ROUNDS = 10  # of the fit, which converges in fewer
MOST_REMEMBERED = 100_000  # predictions


class PairExcess(NamedTuple):
    """The mean excess that a kind of job suffered beside another one on a GPU model."""

    model: str
    kind: str
    beside: str
    excess: float
    weight: float = 1.0  # the number of measurements


class _Fit(NamedTuple):
    """The product model of one GPU model, in logarithms."""

    usual: float
    sensitivity: dict[str, float]
    pressure: dict[str, float]


class Interference:
    """Predicts slowdowns, and learns from measured ones."""

    def __init__(self, measured: Iterable[PairExcess] = ()) -> None:
        # (kind, beside) -> GPU model (as `find_chip` names it) -> mean excess and number of measurements
        self._pairs: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._measured_models: set[str] = set()
        self._fits: dict[str, _Fit] = {}  # by GPU model; "" is any
        self._predicted: dict[tuple[str, str, str], float] = {}  # (kind, beside, model) -> excess
        for pair in measured:
            self._add(pair)

    def slowdown(self, kind: str, beside: Sequence[str], model: str) -> float:
        """Return how many times as long a job of this kind takes beside jobs of those kinds."""
        slowdown = 1.0
        for other in beside:
            excess = self._predicted.get((kind, other, model))
            slowdown += self._predict(kind, other, model) if excess is None else excess
        return slowdown

    def of_jobs(self, job: Job, others: Sequence[Job], model: str) -> float:
        """Return the slowdown of a job beside those others, in the form in which policies ask for it."""
        return self.slowdown(job.kind, [other.kind for other in others], model) if others else 1.0

    def learn(self, kind: str, beside: Sequence[str], model: str, slowdown: float) -> None:
        """Learn from a run beside jobs of those kinds. Of the excess, each of them caused as much as is
        predicted in proportion."""
        excess = max(0.0, slowdown - 1.0)
        chip = find_chip(model)
        expected = [self._excess(kind, other, chip) for other in beside] if len(beside) > 1 else [1.0]
        total = sum(expected)
        for other, part in zip(beside, expected, strict=True):
            share = part / total if total else 1 / len(beside)
            self._add(PairExcess(chip, kind, other, excess * share))

    def prepare(self) -> None:
        """Fit now what predictions need, so that the first of them is as quick as the others."""
        for model in ("", *self._measured_models):
            self._fit(model)

    def pairs(self) -> list[PairExcess]:
        """Return all that was measured: `Interference(pairs)` predicts the same."""
        return [
            PairExcess(model, kind, beside, excess, weight)
            for (kind, beside), by_model in self._pairs.items()
            for model, (excess, weight) in by_model.items()
        ]

    # -- internal -----------------------------------------------------------------------------

    def _predict(self, kind: str, other: str, model: str) -> float:
        """Return the excess, and remember it."""
        if len(self._predicted) >= MOST_REMEMBERED:
            self._predicted.clear()
        found = self._predicted[kind, other, model] = self._excess(kind, other, find_chip(model))
        return found

    def _add(self, pair: PairExcess) -> None:
        by_model = self._pairs.setdefault((pair.kind, pair.beside), {})
        chip = find_chip(pair.model)
        mean, weight = by_model.get(chip, (0.0, 0.0))
        total = weight + pair.weight
        by_model[chip] = ((mean * weight + pair.excess * pair.weight) / total, total)
        self._measured_models.add(chip)
        self._fits.clear()
        self._predicted.clear()

    def _excess(self, kind: str, other: str, model: str) -> float:
        by_model = self._pairs.get((kind, other))
        if by_model:
            if model in by_model:
                return by_model[model][0]
            total = sum(weight for _, weight in by_model.values())
            return sum(mean * weight for mean, weight in by_model.values()) / total
        if not self._pairs:
            return TAKING_TURNS
        fit = self._fit(model)
        logarithm = fit.usual + _factor(fit.sensitivity, kind) + _factor(fit.pressure, other)
        return max(0.0, math.exp(logarithm) - LEAST)

    def _fit(self, model: str) -> _Fit:
        model = model if model in self._measured_models else ""
        fit = self._fits.get(model)
        if fit is None:
            pairs = [pair for pair in self.pairs() if not model or pair.model == model]
            is_enough = not model or len(pairs) >= LEAST_PAIRS
            fit = self._fits[model] = _fit_product(pairs) if is_enough else self._fit("")
        return fit


def _fit_product(pairs: Sequence[PairExcess]) -> _Fit:
    """Fit log(excess + LEAST) = usual + sensitivity + pressure by alternating means, shrunk towards 0."""
    logs = [(pair.kind, pair.beside, math.log(pair.excess + LEAST)) for pair in pairs]
    usual = sum(log for _, _, log in logs) / len(logs)
    sensitivity: dict[str, float] = {}
    pressure: dict[str, float] = {}
    for _ in range(ROUNDS):
        sensitivity = _mean_by((kind, log - usual - pressure.get(beside, 0.0)) for kind, beside, log in logs)
        pressure = _mean_by((beside, log - usual - sensitivity[kind]) for kind, beside, log in logs)
    return _Fit(usual, _with_families(sensitivity), _with_families(pressure))


def _mean_by(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean of every name's values, as if SHRINKAGE more of them were 0."""
    sums: dict[str, tuple[float, float]] = {}
    for name, value in values:
        total, count = sums.get(name, (0.0, SHRINKAGE))
        sums[name] = (total + value, count + 1.0)
    return {name: total / count for name, (total, count) in sums.items()}


def _with_families(factors: dict[str, float]) -> dict[str, float]:
    """Return the factor of every kind, and for each family the mean of its kinds."""
    by_family: dict[str, list[float]] = defaultdict(list)
    for kind, factor in factors.items():
        by_family[_family(kind)].append(factor)
    return {**{family: sum(found) / len(found) for family, found in by_family.items()}, **factors}


def _factor(factors: dict[str, float], kind: str) -> float:
    found = factors.get(kind)
    return factors.get(_family(kind), 0.0) if found is None else found


def _family(kind: str) -> str:
    """Return the last word before what is in brackets, in letters and digits only: of a flow and a network,
    that is the network."""
    words = kind.partition("(")[0].lower().split()
    return re.sub(r"[^a-z0-9]", "", words[-1]) if words else ""

"""How much faster one GPU model is than another: by measurements and data sheets, then by our own jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gpu_flows.schedulers.prediction.gpu_models import UnknownGpuModel, find_chip, find_gpu_model

Expected = Callable[[str, str, str], float]  # family of networks, from, to -> change of log duration

GAVEL_SPEEDS: dict[str, dict[str, float]] = {
    "a3c": {"k80": 1.0, "p100": 1.62, "v100": 2.12},
    "cyclegan": {"k80": 1.0, "p100": 4.39, "v100": 8.66},
    "lm": {"k80": 1.0, "p100": 3.33, "v100": 4.02},
    "recommendation": {"k80": 1.0, "p100": 3.16, "v100": 4.85},
    "resnet-18": {"k80": 1.0, "p100": 5.94, "v100": 6.59},
    "resnet-50": {"k80": 1.0, "p100": 3.61, "v100": 5.47},
    "transformer": {"k80": 1.0, "p100": 2.55, "v100": 3.30},
}
"""Steps per second of one GPU relative to a K80, alone on the GPU: the geometric mean over all batch sizes.
Measured for Gavel (OSDI 2020), physical_cluster_throughputs.json of github.com/stanford-futuredata/gavel.
MIT License, Copyright (c) 2020 Stanford Future Data Systems; its permission notice is in gavel_pairs.json."""

PRIOR = 3.0  # observations that a ratio from a wider group is worth
MOST_KINDS = 20_000  # ratios of single kinds of jobs; beyond this the least recently learned are forgotten


def change_by_table(
    family: str, source: str, target: str, table: Mapping[str, Mapping[str, float]] = GAVEL_SPEEDS
) -> float | None:
    """Return the change of log duration by measured speeds; None if a GPU model was not measured. An unknown
    family of networks gets the geometric mean of all."""
    here, there = find_chip(source), find_chip(target)
    rows = [speeds for name, speeds in table.items() if _same_name(name, family)] or list(table.values())
    changes = [
        math.log(speeds[here] / speeds[there]) for speeds in rows if here in speeds and there in speeds
    ]
    return sum(changes) / len(changes) if changes else None


def change_by_bandwidth(source: str, target: str) -> float:
    """Return the change of log duration if the bandwidth of the memory decides; 0 if a model is not known.
    By Gavel's measurements it nearly does: 3.1 and 3.8 times that of a K80 made networks 3.3 and 4.6 times as
    fast."""
    try:
        here, there = find_gpu_model(source), find_gpu_model(target)
    except UnknownGpuModel:
        return 0.0
    return math.log(here.bandwidth_gb_s / there.bandwidth_gb_s)


@lru_cache(maxsize=4096)
def expected_change(family: str, source: str, target: str) -> float:
    """Return the change of log duration between two GPU models that is expected before any job showed it."""
    measured = change_by_table(family, source, target)
    return change_by_bandwidth(source, target) if measured is None else measured


def _same_name(name: str, family: str) -> bool:
    return name.replace("-", "") == family.lower().replace("-", "").replace("_", "")


class SpeedRatios:
    """Learns, for each kind of job, how the logarithm of its duration changes from one GPU model to
    another."""

    def __init__(self, expected: Expected = expected_change) -> None:
        self._expected = expected  # before any job showed it
        # kind, from, to -> count, mean; those of all kinds ("") are few and stay
        self._all: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._kinds: dict[tuple[str, str, str], tuple[float, float]] = {}  # the latest last

    def learn(self, kind: str, source: str, target: str, change: float) -> None:
        """Learn that a job took exp(change) times as long on the target as a like one on the source."""
        for group in {kind, ""}:
            seen = self._kinds if group else self._all
            for key, value in (((group, source, target), change), ((group, target, source), -change)):
                count, mean = seen.pop(key, (0.0, 0.0))
                seen[key] = (min(count + 1.0, 50.0), mean + (value - mean) / (min(count, 49.0) + 1.0))
        while len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def change(self, kind: str, family: str, source: str, target: str) -> float:
        """Return the expected change of log duration from source to target: what jobs of this kind showed,
        blended with what all jobs showed and with what is expected."""
        if source == target or not (source and target):
            return 0.0
        expected = self._expected(family, source, target)
        for group in ("", kind) if kind else ("",):
            seen = self._kinds if group else self._all
            count, mean = seen.get((group, source, target), (0.0, 0.0))
            expected = (count * mean + PRIOR * expected) / (count + PRIOR)
        return expected

    def to_json(self) -> list[list[Any]]:
        return [[*key, *values] for key, values in (*self._all.items(), *self._kinds.items())]

    @classmethod
    def from_json(cls, stored: Sequence[Sequence[Any]]) -> SpeedRatios:
        ratios = cls()
        for kind, source, target, count, mean in stored:
            (ratios._kinds if kind else ratios._all)[kind, source, target] = (count, mean)
        return ratios

"""A distribution of durations that forgets slowly, and quantiles of weighted mixtures of such distributions.

Durations span seconds to weeks, so all values are logarithms. Neighbouring values share a bin, which keeps
their mean: a job that always takes the same time is answered exactly, whatever the width of a bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

BIN_WIDTH = 0.1  # in logarithms: a tenth
LARGEST_WEIGHT = 1e12  # of one observation; above it all weights are scaled down


class FadingHistogram:
    """Observations of which newer ones weigh more: after `half_life` further ones, an observation counts
    half."""

    __slots__ = ("_bins", "_growth", "_newest", "_total")

    def __init__(self, half_life: float) -> None:
        self._growth = math.exp2(1.0 / half_life)
        self._newest = 1.0  # the weight of the next observation, instead of fading all earlier ones
        self._total = 0.0
        self._bins: dict[int, tuple[float, float]] = {}  # weight, and sum of weighted values

    @property
    def count(self) -> float:
        """How many observations it holds, each faded to its present weight."""
        return self._total / self._newest * self._growth

    def add(self, value: float) -> None:
        weight, key = self._newest, math.floor(value / BIN_WIDTH)
        before, weighted = self._bins.get(key, (0.0, 0.0))
        self._bins[key] = (before + weight, weighted + weight * value)
        self._total += weight
        self._newest *= self._growth
        if self._newest > LARGEST_WEIGHT:
            self._scale_down()

    def points(self, mass: float, shift: float = 0.0) -> Iterator[tuple[float, float]]:
        """Iterate over its values, each plus `shift`, with weights that add up to `mass`."""
        scale = mass / self._total
        return ((total / weight + shift, weight * scale) for weight, total in self._bins.values())

    def _scale_down(self) -> None:
        """Make the newest weight 1 again. Bins that no longer count for anything are dropped."""
        scale, least = 1.0 / self._newest, 1e-6
        self._bins = {
            key: (weight * scale, total * scale)
            for key, (weight, total) in self._bins.items()
            if weight * scale > least
        }
        self._total = sum(weight for weight, _ in self._bins.values())
        self._newest = 1.0

    def to_json(self) -> list[list[float]]:
        """Return one [bin, weight, mean] for each bin, where the newest observation weighs 1."""
        scale = self._growth / self._newest
        return [
            [key, float(f"{weight * scale:.6g}"), float(f"{total / weight:.8g}")]
            for key, (weight, total) in sorted(self._bins.items())
        ]

    @classmethod
    def from_json(cls, stored: Sequence[Sequence[float]], half_life: float) -> FadingHistogram:
        histogram = cls(half_life)
        histogram._bins = {int(key): (weight, weight * mean) for key, weight, mean in stored}
        histogram._total = sum(weight for weight, _ in histogram._bins.values())
        histogram._newest = histogram._growth
        return histogram


def find_quantiles(points: list[tuple[float, float]], shares: Sequence[float]) -> list[float]:
    """Return the quantiles of weighted values: for each of the ascending shares, such as (0.5, 0.9), the
    least value that so much of the weight does not exceed. Sorts the points."""
    points.sort()
    total = sum(weight for _, weight in points)
    found: list[float] = []
    below = 0.0
    for value, weight in points:
        below += weight
        while len(found) < len(shares) and below >= shares[len(found)] * total:
            found.append(value)
    return found + [points[-1][0]] * (len(shares) - len(found))

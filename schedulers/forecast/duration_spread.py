"""How long a job may take in all, given what is predicted of it and that it has run for some time already."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

from gpu_flows.schedulers.prediction.estimate import Estimate

LEAST_SPREAD = 0.02  # of log durations, also of jobs whose time seems certain
_NORMAL = NormalDist()
P90 = _NORMAL.inv_cdf(0.9)


def draw_durations(duration: Estimate, ran_s: float, draws: int, seed: str = "") -> list[float]:
    """Return durations of a job that has run for some time already, one from each of as many equally likely
    ranges: few draws then have the right spread, also the first few of them. A single draw is the median."""
    median = max(duration.value, 1e-3)
    spread = max(LEAST_SPREAD, math.log(max(1.0, duration.upper / median)) / P90)
    passed = _NORMAL.cdf(math.log(ran_s / median) / spread) if ran_s > 0 else 0.0
    passed = min(passed, 1 - 1e-6)  # it takes longer than all that was predicted
    ranges = [passed + (1 - passed) * (number + 0.5) / draws for number in range(draws)]
    spread_out = _mix(ranges, random.Random(seed).random)
    return [max(ran_s, median * math.exp(spread * _NORMAL.inv_cdf(each))) for each in spread_out]


def _mix(ordered: list[float], draw: Callable[[], float]) -> list[float]:
    """Return the values in a random order in which the first two are from different halves, the first four
    from different quarters, and so on."""
    if len(ordered) < 2:
        return ordered
    half = len(ordered) // 2
    low, high = _mix(ordered[:half], draw), _mix(ordered[half:], draw)
    mixed: list[float] = []
    for pair in zip(low, high, strict=False):
        mixed += pair if draw() < 0.5 else pair[::-1]
    return mixed + high[half:]

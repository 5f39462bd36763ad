"""How long earlier jobs ran, and what that tells of a job that has run for some time.

For a job that has run for a seconds, and with S the run time of a job drawn from those that ended,

    left(a)  = E[S - a | S > a]                                  the time that it still takes
    rate(a)  = max over d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a]
    alive(a) = P(S > a)                                          how many took longer

`rate` is the Gittins index: the best chance of an end per second of run time. A job that has outlasted
all others is expected to take as long again as it has run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

import numpy as np

REMEMBERED = 512  # run times; the oldest are dropped
GRID = 24  # attained times for which the outlook is tabulated
UNKNOWN_S = 600.0  # the run time of a job, before any has ended


class Outlook(NamedTuple):
    """What earlier jobs tell of a job that has run for some time."""

    left_s: float
    rate: float
    alive: float


class Lifetimes:
    """The run times of jobs that are alike."""

    def __init__(self) -> None:
        self.count = 0
        self.mean_s = UNKNOWN_S
        self.version = 0  # changes with the table
        self._samples: deque[float] = deque(maxlen=REMEMBERED)
        self._unused = 0
        self._grid: list[float] = []
        self._rows: list[Outlook] = []

    def learn(self, seconds: float) -> bool:
        """Add the run time of a job that ended. Return whether that changed the outlook of others: new run
        times count once they are an eighth of all."""
        self._samples.append(max(seconds, 1e-3))
        self.count += 1
        self._unused += 1
        if self._unused * 8 < len(self._samples):
            return False
        self._tabulate()
        return True

    def outlook(self, attained_s: float) -> Outlook:
        """Return the outlook of a job that has run for so long, between the two nearest of the table."""
        grid = self._grid
        if not grid or attained_s >= grid[-1]:
            left = max(attained_s, self.mean_s)
            return Outlook(left, 1 / left, 0.0)
        above = bisect_right(grid, attained_s)
        low, high = grid[above - 1], grid[above]
        part = (attained_s - low) / (high - low)
        (left0, rate0, alive0), (left1, rate1, alive1) = self._rows[above - 1], self._rows[above]
        return Outlook(
            left0 + part * (left1 - left0), rate0 + part * (rate1 - rate0), alive0 + part * (alive1 - alive0)
        )

    def _tabulate(self) -> None:
        self._unused = 0
        self.version += 1
        times = np.sort(np.asarray(self._samples))
        self.mean_s = float(times.mean())
        longest = float(times[-1])
        times = np.append(times, 2 * longest)  # some job will take longer than all so far
        first = max(float(times[0]), longest * 1e-4) / 2
        grid = np.concatenate(([0.0], np.geomspace(first, 2 * longest, GRID - 1)))
        shorter = np.searchsorted(times, grid[:-1], side="right")
        count, order = len(times), np.arange(1, len(times) + 1)
        sums = np.concatenate(([0.0], np.cumsum(times)))
        alive = count - shorter
        left = (sums[-1] - sums[shorter]) / alive - grid[:-1]
        # For each attained time (rows) and each d that ends at one of the times (columns).
        ended = order[None, :] - shorter[:, None]
        cost = sums[None, 1:] - sums[shorter][:, None] - ended * grid[:-1, None]
        cost += (count - order)[None, :] * (times[None, :] - grid[:-1, None])
        rates = np.where(ended > 0, ended / np.maximum(cost, 1e-9), 0.0).max(axis=1)
        self._grid = grid.tolist()
        self._rows = [
            Outlook(*row) for row in zip(left.tolist(), rates.tolist(), (alive / count).tolist(), strict=True)
        ]
        end = self._grid[-1]
        self._rows.append(Outlook(end, 1 / end, 0.0))
        if not math.isfinite(self.mean_s):
            raise ValueError("a run time is not finite")

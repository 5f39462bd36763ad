"""The Gittins index: how soon a job is likely to end, judged by the service that earlier jobs took.

For a job that has attained service a and is offered a quantum D more,

    G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

where S is the service of a job drawn from those that ended: the probability that the quantum ends the
job, per unit of service that the quantum is expected to cost. Among n sorted samples of which
the first i are not above a and the first j not above a + D, both conditions have the same n - i in
their denominators, which leaves

    G(a) = (j - i) / (sum of (S - a) over the samples i to j, plus D for each of the n - j beyond)

(The simulator of the Tiresias authors sums S instead of S - a.) A job's index is updated once it has had
its quantum, so the index is a table with a row for each quantum.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate

REMEMBERED = 10_000  # samples; the oldest ones are dropped
SLACK = 0.01  # service this close below a limit has reached it, because sums of seconds are not exact


class Gittins:
    """The index by quanta attained, from samples of service that are added as jobs end."""

    def __init__(self, quantum: float, samples: Iterable[float] = ()) -> None:
        self.quantum = quantum
        self._samples = deque(samples, maxlen=REMEMBERED)
        self._unused = 0
        self._tabulate()

    def learn(self, service: float) -> None:
        """Add the service of a job that ended."""
        self._samples.append(service)
        self._unused += 1

    def refresh(self) -> bool:
        """Recompute the index once the new samples are a quarter of all. Return whether it changed."""
        if not self._unused or self._unused * 4 < len(self._samples):
            return False
        self._tabulate()
        return True

    def index(self, attained: float) -> float:
        """Return the index: jobs with a higher one should run first. 0: it has outlasted all earlier jobs."""
        step = int((attained + SLACK) / self.quantum)
        found = self._table.get(step)
        if found is None:
            found = self._table[step] = self._compute(step * self.quantum)
        return found

    def next_change(self, attained: float) -> float:
        """Return the service at which the job's index changes."""
        step = int((attained + SLACK) / self.quantum)
        return (step + 1) * self.quantum if step * self.quantum < self._longest else math.inf

    def _tabulate(self) -> None:
        self._unused = 0
        self._sorted = sorted(self._samples)
        self._sums = [0.0, *accumulate(self._sorted)]
        self._longest = self._sorted[-1] if self._sorted else 0.0
        self._table: dict[int, float] = {}

    def _compute(self, attained: float) -> float:
        longer = bisect_right(self._sorted, attained)
        beyond = bisect_right(self._sorted, attained + self.quantum)
        within = beyond - longer
        cost = self._sums[beyond] - self._sums[longer] - within * attained
        cost += self.quantum * (len(self._sorted) - beyond)
        return within / cost if within else 0.0

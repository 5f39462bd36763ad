"""The time per unit of work, from jobs that stated different amounts of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

MOST_SEEN = 48  # jobs that are kept
FADING = 0.95  # the weight of a job beside the next newer one


class WorkRate:
    """Fits `fixed + rate * amount` to the latest jobs, so that relative errors are small. Both are never
    negative."""

    __slots__ = ("_fit", "_seen")

    def __init__(self, seen: Sequence[tuple[float, float]] = ()) -> None:
        self._seen = deque(seen, maxlen=MOST_SEEN)  # amount, seconds
        self._fit: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, amount: float, seconds: float) -> None:
        self._seen.append((amount, seconds))
        self._fit = None

    def points(self, amount: float) -> Iterator[tuple[float, float]]:
        """Iterate over the log durations that this amount would take, judged by each of the jobs, with
        weights."""
        fixed, rate = self._fit or self._compute()
        expected, weight = math.log(fixed + rate * amount), 1.0
        for seen_amount, seconds in reversed(self._seen):
            yield expected + math.log(seconds / (fixed + rate * seen_amount)), weight
            weight *= FADING

    def _compute(self) -> tuple[float, float]:
        """Minimize the sum of the squared relative errors, newer jobs first."""
        uu = uv = vv = u_sum = v_sum = 0.0
        weight = 1.0
        for amount, seconds in reversed(self._seen):
            u, v = 1.0 / seconds, amount / seconds
            uu += weight * u * u
            uv += weight * u * v
            vv += weight * v * v
            u_sum += weight * u
            v_sum += weight * v
            weight *= FADING
        determinant = uu * vv - uv * uv
        fixed, rate = 0.0, v_sum / vv
        if determinant > 1e-9 * uu * vv:  # there are different amounts
            fixed = (u_sum * vv - v_sum * uv) / determinant
            rate = (v_sum * uu - u_sum * uv) / determinant
            if fixed < 0:
                fixed, rate = 0.0, v_sum / vv
            elif rate < 0:
                fixed, rate = u_sum / uu, 0.0
        self._fit = fixed, rate
        return self._fit

    def to_json(self) -> list[list[float]]:
        return [[amount, seconds] for amount, seconds in self._seen]

    @classmethod
    def from_json(cls, stored: Sequence[Sequence[float]]) -> WorkRate:
        return cls([(amount, seconds) for amount, seconds in stored])

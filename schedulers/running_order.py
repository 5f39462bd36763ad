"""The running jobs in the policy's order, so that a policy finds at once who would yield first.

A running job's rank may move with time: under shortest-remaining-time it falls by a second each
second. Jobs that move at the same speed never pass each other, so each speed is one sorted list
(a rung) that needs no care while time goes by, and ranks are worked out only where they are read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gpu_flows.schedulers.model import Running


class RunningRank(NamedTuple):
    """A running job's place among all jobs: at time t its value is `value + drift * t`."""

    value: Any  # a number, or with no drift anything that sorts
    drift: float = 0.0


Entry = tuple[Any, float, str, Running]


class RunningOrder:
    def __init__(self, running_rank: Callable[[Running], RunningRank | None]) -> None:
        self._running_rank = running_rank
        self._rungs: dict[tuple[int, float], list[Entry]] = {}
        self._places: dict[str, tuple[tuple[int, float], Entry]] = {}

    def rank_by(
        self, running_rank: Callable[[Running], RunningRank | None], all_running: Iterable[Running]
    ) -> None:
        """Another order from now on."""
        self._running_rank = running_rank
        self._rungs.clear()
        self._places.clear()
        for running in all_running:
            self.add(running)

    def add(self, running: Running) -> None:
        running_rank = self._running_rank(running)
        if running_rank is None:
            return
        job = running.job
        rung = (job.queue_priority, running_rank.drift)
        entry: Entry = (running_rank.value, job.submitted, job.id, running)
        insort(self._rungs.setdefault(rung, []), entry)
        self._places[job.id] = (rung, entry)

    def remove(self, job_id: str) -> None:
        place = self._places.pop(job_id, None)
        if place:
            rung, entry = place
            entries = self._rungs[rung]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._rungs[rung]

    def last_first(self, now: float) -> Iterator[tuple[Any, Running]]:
        """Rank and job, beginning with the one that is served last."""
        if len(self._rungs) == 1:
            ((line, drift), entries) = next(iter(self._rungs.items()))
            for entry in reversed(entries):
                yield _rank(line, drift, entry, now), entry[3]
            return
        ends: list[list[Any]] = []
        for (line, drift), entries in self._rungs.items():
            ends.append([_rank(line, drift, entries[-1], now), len(entries) - 1, line, drift, entries])
        while ends:
            worst = max(ends)
            rank, index, line, drift, entries = worst
            yield rank, entries[index][3]
            if index:
                worst[0], worst[1] = _rank(line, drift, entries[index - 1], now), index - 1
            else:
                ends.remove(worst)


def _rank(line: int, drift: float, entry: Entry, now: float) -> tuple[Any, ...]:
    """In the shape of the waiting jobs' ranks, to compare with them."""
    value = entry[0]
    return (line, value + drift * now if drift else value, entry[1], entry[2])

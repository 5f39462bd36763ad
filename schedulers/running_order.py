"""The running jobs in the order of the policy, so that it finds quickly which one to preempt first.

A running job's rank may change with time: under shortest-remaining-time it falls by a second each
second. Jobs that drift at the same speed never overtake each other, so there is one sorted list for
each drift (and queue priority). It stays sorted as time goes by, and ranks are computed only when read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from gpu_flows.schedulers.model import Running


class RunningRank(NamedTuple):
    """The value that orders a running job among all jobs: at time t it is `value + drift * t`."""

    value: Any  # a number; without drift, anything that sorts
    drift: float = 0.0


class OrderOfRunning(Protocol):
    """The part of a policy that orders the running jobs."""

    def running_rank(self, running: Running) -> RunningRank | None: ...


class RunningJobs(Protocol):
    """The order of the running jobs as a policy sees it. To change it, it calls `state.draft`."""

    def last_first(self, now: float) -> Iterator[tuple[Any, Running]]: ...


Lane = tuple[int, float]  # queue priority and drift: jobs of one lane never overtake each other
Entry = tuple[Any, float, str, Running]


class RunningOrder:
    def __init__(self, order: OrderOfRunning) -> None:
        self._running_rank = order.running_rank
        self._lanes: dict[Lane, list[Entry]] = {}
        self._places: dict[str, tuple[Lane, Entry]] = {}

    def add(self, running: Running) -> None:
        rank = self._running_rank(running)
        if rank is not None:
            self._insert(running, rank)

    def remove(self, job_id: str) -> None:
        place = self._places.pop(job_id, None)
        if place:
            lane, entry = place
            entries = self._lanes[lane]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._lanes[lane]

    def rerank(self, running: Running) -> None:
        """Ask the policy for the job's rank again. If that fails the job keeps its old rank."""
        rank = self._running_rank(running)
        self.remove(running.job.id)
        if rank is not None:
            self._insert(running, rank)

    def rerank_all(self, all_running: Iterable[Running]) -> None:
        """Ask the policy for all ranks again. If that fails all jobs keep their old ranks."""
        ranked = [(running, self._running_rank(running)) for running in all_running]
        self._lanes.clear()
        self._places.clear()
        for running, rank in ranked:
            if rank is not None:
                self._insert(running, rank)

    def order_by(self, order: OrderOfRunning, all_running: Iterable[Running]) -> None:
        """Use the order of another policy from now on."""
        self._running_rank = order.running_rank
        self.rerank_all(all_running)

    def last_first(self, now: float) -> Iterator[tuple[Any, Running]]:
        """Iterate over rank and job, beginning with the last in order. The ranks compare with those of
        waiting jobs."""
        if len(self._lanes) == 1:
            ((lane, entries),) = self._lanes.items()
            for entry in reversed(entries):
                yield _full_rank(lane, entry, now), entry[3]
            return
        ends: list[list[Any]] = []
        for lane, entries in self._lanes.items():
            ends.append([_full_rank(lane, entries[-1], now), len(entries) - 1, lane, entries])
        while ends:
            last = max(ends)
            rank, index, lane, entries = last
            yield rank, entries[index][3]
            if index:
                last[0], last[1] = _full_rank(lane, entries[index - 1], now), index - 1
            else:
                ends.remove(last)

    def behind(self, rank: Any, now: float) -> Iterator[Running]:
        """Iterate over the jobs that come after a waiting job of this rank, the last one first."""
        return (running for _, running in takewhile(lambda each: rank < each[0], self.last_first(now)))

    def _insert(self, running: Running, rank: RunningRank) -> None:
        job = running.job
        lane = (job.queue_priority, rank.drift)
        entry: Entry = (rank.value, job.submitted, job.id, running)
        insort(self._lanes.setdefault(lane, []), entry)
        self._places[job.id] = (lane, entry)


def _full_rank(lane: Lane, entry: Entry, now: float) -> tuple[Any, ...]:
    """Return a rank in the form of the waiting jobs' ranks. The third number is 0: among equal values a
    running job precedes the waiting ones if the policy is `running_first`."""
    queue_priority, drift = lane
    value = entry[0]
    return (queue_priority, value + drift * now if drift else value, 0, entry[1], entry[2])

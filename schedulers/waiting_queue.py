"""The waiting jobs, in the order in which the policy would serve them.

Jobs that ask for the same form a group. If the first of a group cannot start, none behind it
can, so a policy looks at the heads of a few groups and never at thousands of jobs. A group is a
heap whose stale entries are dropped when they surface: joining and leaving cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from gpu_flows.schedulers.model import NO_PROGRESS, Job, Progress

Rank = Callable[[Job, Progress], Any]  # what to sort waiting jobs by: lower is served earlier
Grouping = Callable[[Job], object]  # jobs for which it is the same form a group; they share one ask
Entry = tuple[Any, int, Job]  # rank, a number that settles ties, job


def by_request(job: Job) -> object:
    return job.request


class Group:
    """Waiting jobs with one ask, first to be served first."""

    __slots__ = ("_entries", "gpus", "heap", "key")

    def __init__(self, key: object, gpus: int, entries: dict[str, Entry]) -> None:
        self.key = key
        self.gpus = gpus  # the fewest devices that can start one of them
        self.heap: list[Entry] = []
        self._entries = entries

    def head(self) -> Entry | None:
        """The first job in this group, with its rank."""
        heap = self.heap
        while heap:
            entry = heap[0]
            if self._entries.get(entry[2].id) is entry:
                return entry
            heappop(heap)
        return None

    def drop_stale(self) -> None:
        """Forget the entries of those who left, before they surface."""
        self.heap = [entry for entry in self.heap if self._entries.get(entry[2].id) is entry]
        heapify(self.heap)

    def in_order(self) -> Iterator[Entry]:
        """All of them, one after the other, at the price of those looked at. Nobody may join meanwhile."""
        heap = self.heap
        nearest = [(heap[0], 0)] if heap else []  # whatever in the heap may be next
        while nearest:
            entry, place = heappop(nearest)
            if self._entries.get(entry[2].id) is entry:
                yield entry
            for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(nearest, (heap[below], below))


class WaitingQueue:
    def __init__(self, rank: Rank, group: Grouping = by_request) -> None:
        self._rank, self._grouping = rank, group
        self._entries: dict[str, Entry] = {}
        self._groups: dict[object, Group] = {}
        self._progress: dict[str, Progress] = {}  # of those that ran before
        self._sorted: list[Job] | None = None
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def get(self, job_id: str) -> Job | None:
        entry = self._entries.get(job_id)
        return entry[2] if entry else None

    def add(self, job: Job, progress: Progress = NO_PROGRESS) -> None:
        key = self._grouping(job)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, job.least, self._entries)
        entry = (self._rank(job, progress), next(self._numbers), job)
        if len(group.heap) > 64 + 2 * len(self._entries):
            group.drop_stale()
        heappush(group.heap, entry)
        self._entries[job.id] = entry
        if progress is not NO_PROGRESS:
            self._progress[job.id] = progress
        self._sorted = None

    def remove(self, job_id: str) -> Progress:
        """The job leaves. What it had behind it."""
        del self._entries[job_id]
        self._sorted = None
        return self._progress.pop(job_id, NO_PROGRESS) if self._progress else NO_PROGRESS

    def progress(self, job_id: str) -> Progress:
        return self._progress.get(job_id, NO_PROGRESS)

    def note_preemptions(self, job_id: str, count: int) -> None:
        """How often the waiting job has had to yield by now. Nobody is ranked by that."""
        self._progress[job_id] = replace(self.progress(job_id), preemptions=count)

    def rank_by(self, rank: Rank, group: Grouping | None = None) -> None:
        """Another order from now on, and perhaps other groups."""
        self._rank, self._grouping = rank, group or self._grouping
        self._groups.clear()
        for _, _, job in list(self._entries.values()):
            self.add(job, self.progress(job.id))

    def heads(self, most_gpus: int | None = None) -> list[tuple[Any, int, Job, Group]]:
        """The first job of each group that asks for no more than so many devices, as a heap."""
        found = []
        empty = []
        for group in self._groups.values():
            if most_gpus is None or group.gpus <= most_gpus:
                head = group.head()
                if head:
                    found.append((*head, group))
                else:
                    empty.append(group.key)
        for key in empty:
            del self._groups[key]
        heapify(found)
        return found

    def __iter__(self) -> Iterator[Job]:
        """In the policy's order."""
        return (entry[2] for entry in sorted(self._entries.values()))

    @property
    def by_arrival(self) -> list[Job]:
        """In arrival order. Read it, do not change it."""
        if self._sorted is None:
            self._sorted = sorted((entry[2] for entry in self._entries.values()), key=_order)
        return self._sorted


def _order(job: Job) -> tuple[int, float, str]:
    return job.order

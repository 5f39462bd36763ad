"""The waiting jobs, in the order of the policy.

Jobs with the same request form a group. If the first job of a group cannot start, no job behind it
can, so a policy looks at the heads of a few groups and never at thousands of jobs. A group is a heap
whose outdated entries are dropped when they reach the top, so that adding and removing a job is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import count, islice
from typing import Any, Protocol

from gpu_flows.schedulers.model import NO_PROGRESS, Job, Progress

Rank = tuple[Any, ...]  # queue priority, the policy's value, tie, submit time, id: lower ranks first
Entry = tuple[Rank, int, Job]  # the number settles ties between an entry and an outdated one of the same job


class WaitingOrder(Protocol):
    """The part of a policy that orders the waiting jobs."""

    @property
    def running_first(self) -> bool: ...

    def rank(self, job: Job, progress: Progress) -> Any: ...

    def group(self, job: Job) -> object: ...


class Group:
    """Waiting jobs with the same request, in the policy's order."""

    __slots__ = ("_entries", "_heap", "key", "least")

    def __init__(self, key: object, least: int, entries: dict[str, Entry]) -> None:
        self.key = key
        self.least = least  # the fewest devices on which one of its jobs can start
        self._heap: list[Entry] = []
        self._entries = entries

    def head(self) -> Entry | None:
        """Return the entry of the group's first job."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._entries.get(entry[2].id) is entry:
                return entry
            heappop(heap)
        return None

    def in_order(self) -> Iterator[Entry]:
        """Iterate over the entries in order. The cost depends on how many are read, not on the size of
        the group. No job may be added meanwhile."""
        heap = self._heap
        nearest = [(heap[0], 0)] if heap else []  # the entries of the heap that may come next
        while nearest:
            entry, index = heappop(nearest)
            if self._entries.get(entry[2].id) is entry:
                yield entry
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heappush(nearest, (heap[child], child))

    def _drop_outdated(self) -> None:
        self._heap = [entry for entry in self._heap if self._entries.get(entry[2].id) is entry]
        heapify(self._heap)


class WaitingJobs(Protocol):
    """The waiting jobs as a policy sees them. To change them it calls `state.draft`."""

    def __len__(self) -> int: ...

    def __contains__(self, job_id: object) -> bool: ...

    def __iter__(self) -> Iterator[Job]: ...

    @property
    def by_arrival(self) -> list[Job]: ...

    def unordered(self) -> Iterator[Job]: ...

    def get(self, job_id: str) -> Job | None: ...

    def progress(self, job_id: str) -> Progress: ...

    def rank_of(self, job_id: str) -> Rank: ...

    def rank_as_waiting(self, job: Job, progress: Progress) -> Rank: ...

    def candidates(self, most_gpus: int | None = None) -> Iterator[Job]: ...

    def groups(self, most_gpus: int | None = None) -> list[Group]: ...

    def in_order(
        self, most_gpus: int | None = None, where: Callable[[Job], bool] | None = None
    ) -> Iterator[Job]: ...


class WaitingQueue:
    def __init__(self, order: WaitingOrder) -> None:
        self._entries: dict[str, Entry] = {}
        self._groups: dict[object, Group] = {}
        self._progress: dict[str, Progress] = {}  # of the jobs that ran before
        self._by_arrival: list[Job] | None = None
        self._numbers = count()
        self.order_by(order)

    # -- changes ------------------------------------------------------------------------------

    def add(self, job: Job, progress: Progress = NO_PROGRESS) -> None:
        self._push(self._group_key(job), self.rank_as_waiting(job, progress), job)
        if progress is not NO_PROGRESS:
            self._progress[job.id] = progress
        self._by_arrival = None

    def remove(self, job_id: str) -> Progress:
        """Remove the job and return its progress."""
        del self._entries[job_id]
        self._by_arrival = None
        return self._progress.pop(job_id, NO_PROGRESS) if self._progress else NO_PROGRESS

    def rerank(self, job_id: str) -> None:
        """Ask the policy for the job's rank again. If it raises, the job keeps its old rank."""
        job = self._entries[job_id][2]
        self._push(self._group_key(job), self.rank_as_waiting(job, self.progress(job_id)), job)

    def rerank_all(self) -> None:
        """Ask the policy for all ranks again. If it raises, all jobs keep their old ranks."""
        ranked = [
            (self._group_key(job), self.rank_as_waiting(job, self.progress(job.id)), job)
            for _, _, job in self._entries.values()
        ]
        self._groups.clear()
        for key, rank, job in ranked:
            self._push(key, rank, job)

    def order_by(self, order: WaitingOrder) -> None:
        """Use the order of another policy from now on."""
        self._value, self._group_key, self._tie = order.rank, order.group, int(order.running_first)
        self.rerank_all()

    def set_preemptions(self, job_id: str, preemptions: int) -> None:
        """Record how often the waiting job was preempted. No rank depends on it."""
        self._progress[job_id] = replace(self.progress(job_id), preemptions=preemptions)

    # -- reads --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the jobs in the policy's order."""
        return (entry[2] for entry in sorted(self._entries.values()))

    @property
    def by_arrival(self) -> list[Job]:
        """The jobs in arrival order. Callers must not change the list."""
        if self._by_arrival is None:
            jobs = (entry[2] for entry in self._entries.values())
            self._by_arrival = sorted(jobs, key=lambda job: job.order)
        return self._by_arrival

    def unordered(self) -> Iterator[Job]:
        """Iterate over the jobs in any order, without the cost of sorting them."""
        return (entry[2] for entry in self._entries.values())

    def get(self, job_id: str) -> Job | None:
        entry = self._entries.get(job_id)
        return entry[2] if entry else None

    def progress(self, job_id: str) -> Progress:
        return self._progress.get(job_id, NO_PROGRESS)

    def rank_of(self, job_id: str) -> Rank:
        """Return the rank of a waiting job."""
        return self._entries[job_id][0]

    def rank_as_waiting(self, job: Job, progress: Progress) -> Rank:
        """Return the rank that the job has if it waits with this progress. The policy gives the value;
        queue priority, submit time and id are added here for all policies."""
        return (job.queue_priority, self._value(job, progress), self._tie, job.submitted, job.id)

    def candidates(self, most_gpus: int | None = None) -> Iterator[Job]:
        """Iterate over the jobs in order, except those that cannot start: if the caller does not
        start a job, the rest of its group is skipped. With `most_gpus`, leave out the groups that
        need more devices. No job may be added meanwhile."""
        heads = self._heads(most_gpus)
        heapify(heads)
        while heads:
            _, _, job, group = heads[0]
            yield job
            following = group.head()
            if following is None or following[2] is job:
                heappop(heads)
            else:
                heapreplace(heads, (*following, group))

    def groups(self, most_gpus: int | None = None) -> list[Group]:
        """Return the groups that have jobs; with `most_gpus`, those that can start on so many devices."""
        return [group for _, _, _, group in self._heads(most_gpus)]

    def in_order(
        self, most_gpus: int | None = None, where: Callable[[Job], bool] | None = None
    ) -> Iterator[Job]:
        """Iterate over the jobs in order; with `where`, over the groups whose first job passes it. The
        cost depends on how many are read. No job may be added meanwhile."""
        heads = self._heads(most_gpus)
        groups = [group for _, _, job, group in heads if where is None or where(job)]
        return (entry[2] for entry in merge(*(group.in_order() for group in groups)))

    def first(self, limit: int | None = None) -> list[Job]:
        """Return the first `limit` jobs in the policy's order, or in arrival order if the ranks that the
        policy gave do not compare, which no plan has met so far."""
        try:
            return list(islice(self.in_order(), limit))
        except TypeError:
            return self.by_arrival[:limit]

    def _heads(self, most_gpus: int | None) -> list[tuple[Rank, int, Job, Group]]:
        """Return the first entry of each group, and drop the groups that turn out to be empty."""
        heads = []
        empty = []
        entries = self._entries
        for group in self._groups.values():
            if most_gpus is None or group.least <= most_gpus:
                head = group._heap[0] if group._heap else None
                if head and entries.get(head[2].id) is not head:  # only then is the call worth its time
                    head = group.head()
                if head:
                    heads.append((head[0], head[1], head[2], group))
                else:
                    empty.append(group.key)
        for key in empty:
            del self._groups[key]
        return heads

    def _push(self, key: object, rank: Rank, job: Job) -> None:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, job.least, self._entries)
        entry = (rank, next(self._numbers), job)
        if len(group._heap) > 64 + 2 * len(self._entries):
            group._drop_outdated()
        heappush(group._heap, entry)
        self._entries[job.id] = entry

"""Which due jobs may enter the queue: limits and pauses of pool and work queues, holds, dependencies,
predictions.

`Admission` keeps every due job of the pool. `update` tells which of them the engine should get, and which it
should give back. A job that may not enter is held back here with a reason; the engine does not see it. The
cost of an update depends on what changed and on the limits, not on the number of due jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice

from prefect.client.schemas.objects import FlowRun, WorkPool, WorkQueue

from gpu_flows.prefect_api.dependencies import Dependencies
from gpu_flows.prefect_api.job_builder import DueJob
from gpu_flows.schedulers.model import Job, Reason

HELD = Reason("held", "It is held (job variable hold: true).", "`gpu-flows release RUN` lets it start.")
PREDICTING = Reason(
    "predicting",
    "Its memory is being predicted.",
    "It continues by itself; with gpu_memory_gb (--memory) it would not wait.",
)


Place = tuple[tuple[int, float, str], str]  # the job's order and its id


@dataclass(slots=True)
class Line:
    """The due jobs of one work queue, in order. The first `admitted` ones may enter."""

    name: str
    is_limited: bool
    places: list[Place] = field(default_factory=list)
    admitted: set[str] = field(default_factory=set)
    undecided: set[str] = field(default_factory=set)  # the jobs that were added since the last choice
    room: int | None = None  # how many the limit of the work queue allows; None: any number

    def choose(self, count: int | None) -> set[str]:
        """Admit the first `count` jobs. Return the ids of those for which this is a change."""
        if count is None or count >= len(self.places):
            if len(self.admitted) + len(self.undecided) == len(self.places):  # all others are admitted
                changed, self.undecided = self.undecided, set()
                self.admitted |= changed
                return changed
            count = len(self.places)
        chosen = {job_id for _, job_id in self.places[:count]}
        changed = chosen ^ self.admitted
        self.admitted = chosen
        self.undecided.clear()
        return changed

    def copy(self) -> Line:
        """Return a line in which other jobs can be put, to see how many of them may enter."""
        return Line(self.name, self.is_limited, self.places.copy())

    def first(self) -> Iterator[tuple[Place, Line]]:
        """Iterate over the jobs that the limit of the work queue allows."""
        return ((place, self) for place in self.places[: self.room])


@dataclass(frozen=True, slots=True)
class Changes:
    """What the engine has to take and to give back."""

    admit: list[Job]
    withdraw: list[str]


class Admission:
    def __init__(self, pool: WorkPool, served_queues: set[str], dependencies: Dependencies) -> None:
        self.pool, self.dependencies = pool, dependencies
        self._served_queues = served_queues  # empty: all work queues of the pool
        self._work_queues: dict[str, WorkQueue] = {}
        self._due: dict[str, DueJob] = {}
        self._lines: dict[tuple[str, bool], Line] = {}
        self._conditional: dict[str, DueJob] = {}  # of the due jobs: held, predicted, or dependent
        self._awaited: Counter[str] = Counter()  # the runs that they depend on
        self._seen_version = 0  # of the dependencies
        self._given: dict[str, Job] = {}  # what the engine has got
        self._touched: set[str] = set()  # jobs for which the engine may have to be told something
        self._active: dict[str, DueJob | None] = {}  # jobs between plan and reported end; None: not known yet
        self._started: set[str] = set()  # those of them that are being launched or run

    # -- rules --------------------------------------------------------------------------------

    def set_work_queues(self, work_queues: Iterable[WorkQueue]) -> None:
        self._work_queues = {queue.name: queue for queue in work_queues}

    def serves(self, run: FlowRun) -> bool:
        """Return whether the worker serves the run's work queue, and the run does not retry in a process of
        its own."""
        is_served = not self._served_queues or run.work_queue_name in self._served_queues
        return is_served and getattr(run.empirical_policy, "retry_type", None) != "in_process"

    def queue_priority(self, run: FlowRun) -> int:
        """Return the priority of the run's work queue; 0 if it has none."""
        queue = self._work_queues.get(run.work_queue_name or "")
        return (queue.priority if queue else None) or 0

    # -- due jobs -----------------------------------------------------------------------------

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._due

    def __len__(self) -> int:
        return len(self._due)

    def ids(self) -> set[str]:
        return set(self._due)

    def put(self, due: DueJob, is_given: bool = False) -> None:
        """Add a due job, or replace it if it was edited. `is_given`: the engine has it already."""
        job_id = due.job.id
        if is_given:
            self._given[job_id] = due.job
            self._touched.add(job_id)
        if self._due.get(job_id) != due:
            self._remove_from_line(job_id)
            self._due[job_id] = due
            if due.held or due.is_predicting or due.awaited:
                self._conditional[job_id] = due
                self._awaited.update(due.awaited)
            else:
                self._add_to_line(due)
            self._touched.add(job_id)

    def get(self, job_id: str) -> DueJob | None:
        """Return a due or an active job."""
        return self._due.get(job_id) or self._active.get(job_id)

    def discard(self, job_id: str) -> None:
        """Forget a job that is not due any more. The caller withdraws it from the engine."""
        self._remove_from_line(job_id)
        self._due.pop(job_id, None)
        self._given.pop(job_id, None)
        self._touched.discard(job_id)

    def describe_active(self, due: DueJob) -> None:
        """Add what was not known about an active job: an earlier worker launched it."""
        if due.job.id in self._active:
            self._active[due.job.id] = due

    def unknown_active(self) -> list[str]:
        """Return the ids of active jobs of which neither work queue nor request are known."""
        return [job_id for job_id, due in self._active.items() if due is None]

    def dependent_jobs(self) -> list[DueJob]:
        """Return the due jobs that wait for other runs."""
        return [due for due in self._conditional.values() if due.awaited]

    @property
    def awaited_runs(self) -> Set[str]:
        """The ids of the runs that due jobs wait for."""
        return self._awaited.keys()

    def _add_to_line(self, due: DueJob) -> None:
        line = self._line_of(due)
        insort(line.places, (due.job.order, due.job.id))
        line.undecided.add(due.job.id)

    def _remove_from_line(self, job_id: str) -> None:
        due = self._due.get(job_id)
        if due is None:
            return
        if job_id in self._conditional:
            self._remove_condition(job_id)
        line, place = self._line_of(due), (due.job.order, job_id)
        index = bisect_left(line.places, place)
        if index < len(line.places) and line.places[index] == place:
            del line.places[index]
        line.admitted.discard(job_id)
        line.undecided.discard(job_id)

    def _remove_condition(self, job_id: str) -> None:
        self._awaited -= Counter(self._conditional.pop(job_id).awaited)  # drops those that nothing waits for

    def _line_of(self, due: DueJob, lines: dict[tuple[str, bool], Line] | None = None) -> Line:
        key = (due.work_queue, due.is_limited)
        return (self._lines if lines is None else lines).setdefault(key, Line(*key))

    # -- decisions ----------------------------------------------------------------------------

    def update(self, executing: Set[str], elsewhere: Set[str] = frozenset()) -> Changes:
        """Return what to tell the engine, given the jobs between plan and reported end, and those that other
        machines execute."""
        self._note_executing(executing | elsewhere)
        self.dependencies.executing = frozenset(self._awaited.keys() & executing)
        self._resolve_conditions()
        self._touched |= self._choose()
        admit, withdraw = [], []
        for job_id in self._touched:
            due = self._due.get(job_id)
            if due and job_id in self._line_of(due).admitted:
                if self._given.get(job_id) is not due.job:
                    self._given[job_id] = due.job
                    admit.append(due.job)
            elif self._given.pop(job_id, None):
                withdraw.append(job_id)
        self._touched.clear()
        return Changes(sorted(admit, key=lambda job: job.order), withdraw)

    def find_objection(self, job_id: str) -> Reason | None:
        """Return why a job that a plan starts may not start after all: the limits may have changed since it
        was admitted. Without an objection, it counts as started from now on."""
        due = self.get(job_id)
        others = self._started - {job_id}  # a job that moves has started already
        if due and (reason := self._find_pause(due.work_queue) or self._find_limit(due, others)):
            return reason
        self._started.add(job_id)
        return None

    def foresee_objections(self, imagined: Sequence[DueJob]) -> list[Reason | None]:
        """Return why each of these jobs, which nobody has submitted yet, would be held back if all of them
        were due now; None if it would enter."""
        lines = {key: line.copy() for key, line in self._lines.items()}
        in_line: dict[str, tuple[Line, Place]] = {}
        for due in imagined:
            if not due.held and self.dependencies.allow(due.after, due.after_any):
                line, place = self._line_of(due, lines), (due.job.order, due.job.id)
                insort(line.places, place)
                in_line[due.job.id] = line, place
        counts = self._share_out(list(lines.values()))
        return [
            self._foresee_objection(*in_line[due.job.id], counts)
            if due.job.id in in_line
            else self._find_condition(due)
            for due in imagined
        ]

    def _foresee_objection(self, line: Line, place: Place, counts: Mapping[int, int | None]) -> Reason | None:
        index, count = bisect_left(line.places, place), counts[id(line)]
        return None if count is None or index < count else self._find_barrier(line, index)

    def _find_limit(self, due: DueJob, started: Iterable[str]) -> Reason | None:
        """Return the limit that the job would exceed beside those that have started."""
        if due.is_limited:
            used = self._count(started)
            pool_limit, queue_limit = self.pool.concurrency_limit, self._queue_limit(due.work_queue)
            if pool_limit is not None and used.total() >= pool_limit:
                return self._pool_limit_reason(pool_limit)
            if queue_limit is not None and used[due.work_queue] >= queue_limit:
                return self._queue_limit_reason(due.work_queue, queue_limit)
        return None

    def _note_executing(self, executing: Set[str]) -> None:
        for job_id in executing - self._active.keys():
            self._active[job_id] = self._due.get(job_id)
            if job_id not in self._given:  # another worker launched it
                self._started.add(job_id)
        for job_id in executing:
            if job_id in self._due:
                self.discard(job_id)
        for job_id in self._active.keys() - executing:
            del self._active[job_id]
        self._started &= executing

    def _resolve_conditions(self) -> None:
        """Let the jobs enter their lines whose dependencies have completed or ended."""
        news = self.dependencies.version != self._seen_version
        self._seen_version = self.dependencies.version
        for job_id in list(self._conditional) if news else self._touched & self._conditional.keys():
            due = self._conditional[job_id]
            if not (due.held or due.is_predicting) and self.dependencies.allow(due.after, due.after_any):
                self._remove_condition(job_id)
                self._add_to_line(due)
                self._touched.add(job_id)

    def _choose(self) -> set[str]:
        """Admit as many jobs of each line as limits and pauses allow. Return the ids of the changes."""
        lines = list(self._lines.values())
        counts = self._share_out(lines)
        changed: set[str] = set()
        for line in lines:
            changed |= line.choose(counts[id(line)])
        return changed

    def _share_out(self, lines: Sequence[Line]) -> dict[int, int | None]:
        """Return how many jobs of each line may enter, by its id(); None: any number."""
        used = self._count(self._active)
        for line in lines:
            limit = self._queue_limit(line.name) if line.is_limited else None
            line.room = None if limit is None else max(0, limit - used[line.name])
            if self._find_pause(line.name):
                line.room = 0
        limit = self.pool.concurrency_limit
        counts = {id(line): line.room for line in lines}
        if limit is not None:
            limited = [line for line in lines if line.is_limited]
            first = merge(*(line.first() for line in limited), key=lambda head: head[0])
            chosen = Counter(id(line) for _, line in islice(first, max(0, limit - used.total())))
            counts |= {id(line): chosen[id(line)] for line in limited}
        return counts

    def _count(self, job_ids: Iterable[str]) -> Counter[str]:
        """Count those of these jobs of each work queue that count against the limits."""
        jobs = map(self.get, job_ids)
        return Counter(due.work_queue if due else "" for due in jobs if due is None or due.is_limited)

    def _queue_limit(self, name: str) -> int | None:
        queue = self._work_queues.get(name)
        return queue.concurrency_limit if queue else None

    # -- reasons ------------------------------------------------------------------------------

    def holds(self, job_id: str) -> bool:
        """Return whether the job is due and held back."""
        return job_id in self._due and job_id not in self._given

    def reasons(self) -> Iterator[tuple[Job, Reason]]:
        """Iterate over the jobs that are held back, with why each of them is."""
        held_back = map(self._held_back, self._lines.values())
        for (_, job_id), reason in merge(*held_back, key=lambda entry: entry[0]):
            yield self._due[job_id].job, reason
        for due in sorted(self._conditional.values(), key=lambda due: due.job.order):
            yield due.job, self._find_condition(due)

    def _find_condition(self, due: DueJob) -> Reason:
        """Return what a job waits for before it may enter its line."""
        if due.held:
            return HELD
        if due.awaited and not self.dependencies.allow(due.after, due.after_any):
            return self.dependencies.explain(due.after, due.after_any)
        return PREDICTING

    def _held_back(self, line: Line) -> Iterator[tuple[Place, Reason]]:
        """Iterate over the jobs of the line that may not enter. Jobs that are not decided on are left out."""
        if len(line.admitted) == len(line.places):
            return
        within, beyond = self._find_barrier(line, 0), self._find_barrier(line, len(line.places))
        for index, place in enumerate(line.places):
            if place[1] not in line.admitted and place[1] not in self._touched:
                yield place, beyond if line.room is not None and index >= line.room else within

    def _find_barrier(self, line: Line, index: int) -> Reason:
        """Return what keeps the job at this place of the line from entering."""
        if pause := self._find_pause(line.name):
            return pause
        if line.room is not None and index >= line.room:
            return self._queue_limit_reason(line.name, self._queue_limit(line.name) or 0)
        return self._pool_limit_reason(self.pool.concurrency_limit or 0)

    def _find_pause(self, queue_name: str) -> Reason | None:
        pool, queue = self.pool.name, self._work_queues.get(queue_name)
        if self.pool.is_paused:
            return Reason(
                "paused", f"Work pool {pool!r} is paused.", f"`prefect work-pool resume {pool}` resumes it."
            )
        if queue and queue.is_paused:
            return Reason(
                "paused",
                f"Work queue {queue_name!r} is paused.",
                f"`prefect work-queue resume {queue_name} --pool {pool}` resumes it.",
            )
        return None

    def _pool_limit_reason(self, limit: int) -> Reason:
        return Reason(
            "pool_limit",
            f"Work pool {self.pool.name!r} runs at most {_jobs(limit)} at a time.",
            f"`prefect work-pool set-concurrency-limit {self.pool.name} N` changes this.",
        )

    def _queue_limit_reason(self, name: str, limit: int) -> Reason:
        return Reason(
            "queue_limit",
            f"Work queue {name!r} runs at most {_jobs(limit)} at a time.",
            f"`prefect work-queue set-concurrency-limit {name} N --pool {self.pool.name}` changes this.",
        )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"

"""Which runs the pool and its work queues admit, and how many jobs their limits allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prefect.client.schemas.objects import FlowRun, WorkPool, WorkQueue

from gpu_flows.schedulers.model import Job


class Admission:
    """The pauses and concurrency limits of a pool, as last read from the server."""

    def __init__(self, pool: WorkPool, served_queues: set[str]) -> None:
        self.pool = pool
        self._served_queues = served_queues  # empty: all work queues of the pool
        self._work_queues: dict[str, WorkQueue] = {}

    def set_work_queues(self, work_queues: Iterable[WorkQueue]) -> None:
        self._work_queues = {queue.name: queue for queue in work_queues}

    def admits(self, run: FlowRun) -> bool:
        """Return whether Prefect's own poll would return the run, apart from concurrency limits."""
        queue = self._work_queues.get(run.work_queue_name or "")
        return (
            not self.pool.is_paused
            and not (queue and queue.is_paused)
            and (not self._served_queues or run.work_queue_name in self._served_queues)
            and getattr(run.empirical_policy, "retry_type", None) != "in_process"
        )

    def queue_priority(self, run: FlowRun) -> int:
        """Return the priority of the run's work queue; 0 if it has none."""
        queue = self._work_queues.get(run.work_queue_name or "")
        return (queue.priority if queue else None) or 0

    def within_limits(
        self, jobs: Iterable[Job], active: Iterable[str], queue_names: Mapping[str, str]
    ) -> list[Job]:
        """Return the first jobs, in queue order, that the concurrency limits allow next to the active ones.

        `queue_names` maps job ids to work queues. Coordinators do not count against the limits: a
        coordinator that took the last slot would wait forever for the jobs it submits.
        """
        used = Counter(queue_names.get(job_id, "") for job_id in active)
        limits = {name: queue.concurrency_limit for name, queue in self._work_queues.items()}
        slots = self.pool.concurrency_limit
        slots = None if slots is None else slots - used.total()
        allowed = []
        for job in sorted(jobs, key=lambda job: job.order):
            if job.gpus == 0:
                allowed.append(job)
                continue
            queue = queue_names.get(job.id, "")
            limit = limits.get(queue)
            if (slots is not None and slots <= 0) or (limit is not None and used[queue] >= limit):
                continue
            used[queue] += 1
            slots = None if slots is None else slots - 1
            allowed.append(job)
        return allowed

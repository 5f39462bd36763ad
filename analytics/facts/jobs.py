"""Facts about jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpu_flows.analytics.facts.base import Fact, in_table

if TYPE_CHECKING:
    from gpu_flows.schedulers.model import Job


@in_table("jobs")
class JobSubmitted(Fact):
    """A pool received a job."""

    job_id: str
    pool: str
    name: str
    flow: str
    deployment: str
    user_name: str
    tags: str
    """A JSON list."""
    gpus: int
    gpu_memory_mb: int
    priority: int
    deadline: float | None
    expected_s: float | None
    submitted: float
    """When the run was due."""
    experiment: str = ""
    """The name of a benchmark or a simulation; empty for live work."""

    @classmethod
    def of(
        cls,
        job: Job,
        job_id: str,
        pool: str,
        flow: str,
        deployment: str = "",
        tags: str = "[]",
        experiment: str = "",
    ) -> JobSubmitted:
        """Return the fact that the pool received this job."""
        request = job.gpus, job.memory_mb, job.priority, job.deadline, job.expected_s, job.submitted
        name = job.name or job.id
        return cls(job_id, pool, name, flow, deployment, job.user, tags, *request, experiment)


@in_table("job_requests")
class JobQueued(Fact):
    """A job entered the queue of the engine for the first time, with what a policy knows of it then."""

    job_id: str
    queued: float
    work_queue: str
    queue_priority: int
    kind: str
    nodes: str
    """A JSON list of patterns."""
    models: str
    """A JSON list of patterns."""
    may_span_nodes: bool
    one_node: str
    min_gpus: int
    max_gpus: int
    preemptible: bool
    cpus: float
    ram_mb: int
    memory_mb: int
    """Stated or predicted."""
    expected_s: float | None
    """Stated or predicted."""
    predicted: str
    """A JSON list: which of these its owner did not state."""

    @classmethod
    def of(cls, job: Job, job_id: str, queued: float, work_queue: str = "") -> JobQueued:
        """Return the fact that this job entered the queue."""
        return cls(
            job_id=job_id,
            queued=queued,
            work_queue=work_queue,
            queue_priority=job.queue_priority,
            kind=job.kind,
            nodes=json.dumps(job.nodes),
            models=json.dumps(job.models),
            may_span_nodes=job.may_span_nodes,
            one_node=job.one_node,
            min_gpus=job.min_gpus,
            max_gpus=job.max_gpus,
            preemptible=job.preemptible,
            cpus=job.cpus,
            ram_mb=job.ram_mb,
            memory_mb=job.memory_mb,
            expected_s=job.expected_s,
            predicted=json.dumps(job.predicted),
        )


@in_table("job_ends")
class JobEnded(Fact):
    """A job reached its final state."""

    job_id: str
    ended: float
    outcome: str
    """completed, failed, crashed, cancelled or refused."""
    detail: str = ""

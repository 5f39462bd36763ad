"""Facts about jobs."""

from __future__ import annotations

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


@in_table("job_ends")
class JobEnded(Fact):
    """A job reached its final state."""

    job_id: str
    ended: float
    outcome: str
    """completed, failed, crashed, cancelled or refused."""
    detail: str = ""

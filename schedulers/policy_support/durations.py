"""Expected durations, stated or predicted, with one rule for jobs that have none: they count as endless."""

from __future__ import annotations

import math

from gpu_flows.schedulers.model import Job


def expected_duration(job: Job) -> float:
    """Return how many seconds the job is expected to run; infinity if that is unknown."""
    return math.inf if job.expected_s is None else job.expected_s


def remaining_duration(job: Job, work_s: float) -> float:
    """Return how many seconds the job has left after this much work; negative if it takes longer than
    expected, infinity if its duration is unknown."""
    return math.inf if job.expected_s is None else job.expected_s - work_s

"""Who may not be stopped, whatever a policy would gain by it.

Stopping a job costs it time: it saves, waits, starts again and loads. A policy that looks at nothing
but its own order may stop the same job again and again, until it does little else. So the engine
protects jobs that have only just started, and those that were stopped often enough, beside those
that asked for it. Policies are told (`State.may_preempt`), so that they do not plan in vain.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from gpu_flows.schedulers.model import Running


class Protection(BaseModel):
    """How jobs are protected from being stopped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_run_seconds: float = Field(
        default=60,
        ge=0,
        title="Least run time (seconds)",
        description="A job that was started is not stopped for another one before it ran for so long.",
    )
    most_preemptions: int = Field(
        default=10,
        ge=0,
        title="Most preemptions",
        description="A job that had to yield so often does not yield again. 0 means that there is no limit.",
    )

    def until(self, running: Running) -> float:
        """Until when the job is protected: for ever, or until a time that may be past."""
        job, limit = running.job, self.most_preemptions
        if not job.preemptible or (limit and running.before.preemptions >= limit):
            return math.inf
        return running.since + self.min_run_seconds


UNPROTECTED = Protection(min_run_seconds=0, most_preemptions=0)  # but for those who asked for it

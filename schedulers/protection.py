"""Which running jobs may not be preempted.

A preemption costs a job time: it saves, waits, starts again and loads. A policy that follows only its own
order may preempt the same job again and again. So the engine protects jobs that have just started and
jobs that were preempted often, besides those that ask for it. Policies can check this with
`State.may_preempt`.
"""

from __future__ import annotations

import math

from pydantic import ConfigDict, Field

from gpu_flows.common.forms import Form
from gpu_flows.schedulers.model import Running


class Protection(Form):
    """How jobs are protected from being preempted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_run_seconds: float = Field(default=60, ge=0, title="Least run time (seconds)")
    """A job is not preempted before it has run for this long."""

    most_preemptions: int = Field(default=10, ge=0)
    """A job that was preempted this often is not preempted again. 0 means that there is no limit."""

    def until(self, running: Running) -> float:
        """Return until when the job is protected: infinity, or a time that may be past."""
        job, limit = running.job, self.most_preemptions
        if not job.preemptible or (limit and running.before.preemptions >= limit):
            return math.inf
        return running.since + self.min_run_seconds


UNPROTECTED = Protection(min_run_seconds=0, most_preemptions=0)  # except jobs that are not preemptible

"""Which running jobs may not be preempted.

A preemption costs a job time: it saves, waits, starts again and loads. A policy that follows only its own
order may preempt the same job again and again. So the engine protects jobs that have just started and
jobs that were preempted often, besides those that ask for it. Policies can check this with
`State.may_preempt`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pydantic import ConfigDict, Field

from gpu_flows.common.clock import describe_time
from gpu_flows.common.forms import Form
from gpu_flows.schedulers.model import Job, Running


class Protection(Form):
    """How jobs are protected from being preempted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_run_seconds: float = Field(default=60, ge=0, title="Least run time (seconds)")
    """A job is not preempted before it has run for this long."""

    most_preemptions: int = Field(default=10, ge=0)
    """A job that was preempted this often is not preempted again. 0 means that there is no limit."""

    def describe(self) -> str:
        """Return, in a sentence, which jobs are protected."""
        often = f", and not more than {self.most_preemptions} times" if self.most_preemptions else ""
        return f"No job is preempted before it has run for {self.min_run_seconds:g} s{often}."

    def until(self, running: Running) -> float:
        """Return until when the job is protected: infinity, or a time that may be past."""
        job, limit = running.job, self.most_preemptions
        if not job.preemptible or (limit and running.before.preemptions >= limit):
            return math.inf
        return running.since + self.min_run_seconds

    def foresee(self, job: Job, behind: Iterable[Running], now: float) -> str:
        """Say when the first of the running jobs that rank behind a waiting job may be preempted for it.
        Empty if none of them is protected for now only."""
        useful = (running for running in behind if any(map(job.accepts, running.devices)))
        protected = [
            (until, running) for running in useful if now < (until := self.until(running)) < math.inf
        ]
        if not protected:
            return ""
        until, running = min(protected, key=lambda each: each[0])
        at = describe_time(until, now, with_zone=True)
        return (
            f"{running.job.name or running.job.id} may be preempted for it from {at}; a job is protected for "
            f"its first {self.min_run_seconds:g} s."
        )


UNPROTECTED = Protection(min_run_seconds=0, most_preemptions=0)  # except jobs that are not preemptible

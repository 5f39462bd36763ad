"""The interface through which the dispatcher claims jobs and reports what happens to them.

`PrefectGateway` implements it for a pool; the tests use a fake.
"""

from __future__ import annotations

from typing import Protocol

from gpu_flows.runtimes.base import Attempt, End, Intent, Launch
from gpu_flows.schedulers.model import Job, Reason, Start

REQUEUED = "preempted"  # the outcome of a job that waits again
SUSPENDED = "suspended"  # the outcome of a job that waits until someone resumes it


class Unreachable(Exception):
    """The server does not answer. The request had no effect; try again later."""


class HeldBack(Exception):
    """The job may not start now, for example because a limit was lowered. It waits again."""


class Gateway(Protocol):
    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        """Claim the job and return how to launch it. None if the job is no longer available.
        Raises Unreachable, HeldBack, or LaunchError for a job that cannot be launched."""
        ...

    def tell(self, job: Job, text: str) -> None:
        """Tell the job's owner what happens to it. Returns immediately."""
        ...

    async def release(self, job: Job, why: str) -> None:
        """Give up the claim on a job whose command was not started, for no fault of its own. It waits again,
        also if its launch was reported."""
        ...

    async def report_launch(self, attempt: Attempt) -> bool:
        """Report that the attempt runs. False if the job was cancelled meanwhile and must be stopped."""
        ...

    async def report_end(
        self, launch: Launch, end: End, intent: Intent | None, why: str = "", out_of_memory: bool = False
    ) -> tuple[str, str]:
        """Report the end, and retry until the report is accepted. Returns the outcome and a detail. A job
        that was stopped with the intent "reschedule", or ran `out_of_memory`, and has not finished waits
        again; `why` explains it."""
        ...

    async def report_launch_failure(self, job: Job, why: str) -> None:
        """Report that the claimed job could not be launched."""
        ...

    async def report_cancelled(self, job: Job) -> None:
        """Report that the job was cancelled before it was claimed."""
        ...

    async def refuse(self, job: Job, reason: Reason) -> None:
        """Report that the job can never run here."""
        ...

"""The counter at which the dispatcher gets jobs and hands in what became of them.

Behind it may be anybody: Prefect in a pool (`PrefectGateway`), a script in a test.
"""

from __future__ import annotations

from typing import Protocol

from gpu_flows.runtimes.base import Attempt, End, Intent, Launch
from gpu_flows.schedulers.model import Job, Reason, Start

REQUEUED = "preempted"  # the outcome of a job that was put back in line


class Unreachable(Exception):
    """The gateway cannot be asked now. Nothing was decided; try again."""


class Gateway(Protocol):
    """Where jobs come from and are reported to."""

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        """Make the job ours and say how to launch it. None if it is somebody else's or gone.
        Raises Unreachable, or LaunchError for a job that cannot be launched."""
        ...

    async def launched(self, attempt: Attempt) -> bool:
        """Report the launch. False if the job should not have been launched after all."""
        ...

    async def ended(self, launch: Launch, end: End, intent: Intent | None, why: str = "") -> tuple[str, str]:
        """Report the end; keeps trying until it is reported. The outcome, and a word on it. A job that
        was asked to come back later (`why` says what for) and did not end instead is put back in line."""
        ...

    async def never_launched(self, job: Job, why: str) -> None:
        """The claimed job was not launched, by no fault of its own: it waits again."""
        ...

    async def cancelled(self, job: Job) -> None:
        """The job was cancelled before it was claimed."""
        ...

    async def failed_to_launch(self, job: Job, why: str) -> None: ...

    async def refuse(self, job: Job, reason: Reason) -> None: ...

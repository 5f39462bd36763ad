"""All executions of a pool, and which of them wait for devices that another job still has to release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from gpu_flows.dispatch.execution import Execution
from gpu_flows.schedulers.model import Job, Reason, Running


class Executions:
    def __init__(self) -> None:
        self.latest: dict[str, Execution] = {}  # job id -> its latest execution
        self.preempting: set[Execution] = set()  # they occupy devices that a plan has given to other jobs

    def __iter__(self) -> Iterator[Execution]:
        yield from {*self.latest.values(), *self.preempting}

    async def wait_for_devices(self, execution: Execution) -> bool:
        """Wait until the execution's devices are free and the job's previous execution has finished.
        Returns False if the execution must not begin: a stop was requested, or the job ended."""
        previous, stop = execution.previous, execution.stop_requested
        if previous and previous.task:
            await asyncio.wait([previous.task, stop], return_when=asyncio.FIRST_COMPLETED)
        while not stop.done():
            blockers = [other.released for other in self.preempting if other.blocks(execution)]
            if not blockers:
                break
            await asyncio.wait([*blockers, stop], return_when=asyncio.FIRST_COMPLETED)
        return not stop.done() and not (previous and previous.job_ended)

    def waiting_reason(self, execution: Execution) -> Reason | None:
        """Why the execution waits for its devices, or None if it does not."""
        if execution.done_waiting or execution.stop_requested.done():
            return None
        blockers = [other.job for other in self.preempting if other.blocks(execution)]
        names = [job.name or job.id for job in blockers if job.id != execution.job.id]
        if not names and execution.previous and not execution.previous.job_ended:
            return Reason(
                "making_room",
                "It moves to other devices: its present attempt saves and stops first.",
                "It continues by itself.",
            )
        if not names:
            return None
        shown = [*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])]
        return Reason(
            "making_room",
            f"Its devices are being freed: it waits for {' and '.join(shown)} to save and stop.",
            "It starts by itself, at the latest after their grace period.",
        )

    def reasons(self) -> Iterator[tuple[Job, Reason]]:
        """The jobs that wait for their devices to be released, each with the reason."""
        for execution in list(self.latest.values()):
            if reason := self.waiting_reason(execution):
                yield execution.job, reason

    def occupants(self, running: Mapping[str, Running]) -> Iterator[tuple[Running, str]]:
        """The jobs on devices, each with the reason for its preemption if it is being preempted. `running`
        is the engine's view, which already lists the jobs that still wait for their devices."""
        for job_id, planned in running.items():
            execution = self.latest.get(job_id)
            if not (execution and self.waiting_reason(execution)):
                yield planned, execution.preemption.why if execution and execution.preemption else ""
        for execution in self.preempting:
            if execution.attempt and execution.preemption:
                launch, since = execution.attempt.launch, execution.attempt.started
                yield (
                    Running(execution.job, execution.devices, since, launch.attempt, launch.policy),
                    execution.preemption.why,
                )

    def find_job(self, identifier: str) -> str | None:
        """The id of the job whose attempt has this infrastructure identifier."""
        for execution in self:
            if execution.attempt and execution.attempt.identifier == identifier:
                return execution.job.id
        return None

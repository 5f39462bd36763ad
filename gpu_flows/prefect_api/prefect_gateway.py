"""The dispatcher's gateway to Prefect: claims runs, builds their launches and reports their ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectException

from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.gateway import REQUEUED, HeldBack, Unreachable
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.final_states import launch_failed, refused
from gpu_flows.prefect_api.launch_builder import LaunchBuilder
from gpu_flows.prefect_api.placement_text import describe_devices, placement_tags, without_placement
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.server_retry import is_temporary
from gpu_flows.prefect_api.worker_log import WorkerLog
from gpu_flows.runtimes.base import Attempt, End, Intent, Launch, LaunchError
from gpu_flows.schedulers.model import Device, Job, Reason, Start


class PrefectGateway:
    """Implements `gpu_flows.dispatch.gateway.Gateway`."""

    def __init__(self, due_jobs: DueJobs, states: RunStates, launches: LaunchBuilder, log: WorkerLog) -> None:
        self._due_jobs, self._states, self._launches, self._log = due_jobs, states, launches, log
        self._claims: dict[str, UUID] = {}  # ids of the claiming states, until their runs are launched

    def tell(self, job: Job, text: str) -> None:
        self._log.write(job.id, text)

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        run = self._due_jobs.run(start.job.id)
        claim_id = await self._claim(run, start.devices) if run else None
        if run is None or claim_id is None:
            return None
        self._claims[start.job.id] = claim_id
        try:
            launch = await self._launches.build(run, start, policy, planned)
        except httpx.HTTPError as error:
            if not is_temporary(error):
                raise LaunchError(f"its job variables cannot be resolved ({error})") from error
            await self._states.release_claim(run.id, "the server was away while it was being launched")
            raise Unreachable(str(error)) from error
        except LaunchError:
            raise
        except Exception as error:
            raise LaunchError(f"its job variables cannot be used ({error})") from error
        self.tell(start.job, await _describe_start(launch))
        return launch

    async def _claim(self, run: FlowRun, devices: Sequence[Device]) -> UUID | None:
        """Claim the run, and meanwhile check that limits and pauses still allow it to start."""
        checking = asyncio.ensure_future(self._due_jobs.find_objection(str(run.id)))
        try:
            ids = [device.id for device in devices]
            claim_id = await self._states.claim(run.id, ids, _describe_place(devices))
            if claim_id is None:
                return None
            objection = await checking
        except (httpx.HTTPError, PrefectException) as error:
            await self._states.release_claim(run.id, "the server was away while it was being claimed")
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            checking.cancel()
        if objection:
            if not await self._states.restore_overwritten(run.id, claim_id):
                await self._states.release_claim(run.id, objection.summary.rstrip("."))
            raise HeldBack(str(objection))
        return claim_id

    async def report_launch(self, attempt: Attempt) -> bool:
        run_id, launch = UUID(attempt.launch.job.id), attempt.launch
        run = self._due_jobs.run(launch.job.id)
        tags = [*without_placement(run.tags), *placement_tags(launch.devices)] if run else None
        await self._states.set_infrastructure(run_id, attempt.identifier, tags)
        claim_id = self._claims.pop(launch.job.id, None)
        if claim_id is not None and await self._states.restore_overwritten(run_id, claim_id):
            return False
        if not launch.handles_intents:
            await self._states.set_running(run_id, f"On {describe_devices(launch.devices)}.")
        return True

    async def report_end(
        self, launch: Launch, end: End, intent: Intent | None, why: str = "", out_of_memory: bool = False
    ) -> tuple[str, str]:
        run_id, claim_id = UUID(launch.job.id), self._claims.pop(launch.job.id, None)
        if claim_id is not None:
            await self._states.restore_overwritten(run_id, claim_id)
        outcome, detail = await self._states.finish(
            run_id, end, intent, launch.handles_intents, why, out_of_memory
        )
        if outcome == REQUEUED:
            stopped = why if out_of_memory else "Stopped. It waits again and continues as its next attempt."
            self.tell(launch.job, stopped)
        return outcome, detail

    async def report_cancelled(self, job: Job) -> None:
        await self._states.complete_cancellation(UUID(job.id))

    async def release(self, job: Job, why: str) -> None:
        run_id, claim_id = UUID(job.id), self._claims.pop(job.id, None)
        if claim_id is None:  # its launch was reported, or an earlier worker claimed it
            await self._states.take_back_launch(run_id, why)
        elif not await self._states.restore_overwritten(run_id, claim_id):
            await self._states.release_claim(run_id, why)

    async def report_launch_failure(self, job: Job, why: str) -> None:
        await self._states.force(UUID(job.id), launch_failed(why))

    async def refuse(self, job: Job, reason: Reason) -> None:
        await self.refuse_run(UUID(job.id), reason)

    async def refuse_run(self, run_id: UUID, reason: Reason) -> None:
        """Refuse a run, whether it could be built into a job or not."""
        self._log.write(str(run_id), f"Refused: {reason}", logging.ERROR)
        await self._states.force(run_id, refused(reason))


def _describe_place(devices: Sequence[Device]) -> str:
    return f"on {describe_devices(devices)}" if devices else "without a device"


async def _describe_start(launch: Launch) -> str:
    """Return the line for the log of a run that starts now."""
    where = _describe_place(launch.devices)
    if launch.attempt == 1:
        return f"Starting {where} (policy {launch.policy!r})."
    again = f"Starting again {where} (policy {launch.policy!r}, attempt {launch.attempt})"
    if not launch.checkpoints:
        return f"{again}."
    entries = await asyncio.to_thread(contract.read_journal, Path(launch.checkpoints))
    saves = [entry.step for entry in entries if entry.event == "saved"]
    return f"{again}; it resumes from step {saves[-1]:,.0f}." if saves else f"{again}."

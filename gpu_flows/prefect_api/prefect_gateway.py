"""The dispatcher's gateway to Prefect: claims runs, builds their launches and reports their ends."""

from __future__ import annotations

from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun

from gpu_flows.dispatch.gateway import Unreachable
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.final_states import launch_failed, refused
from gpu_flows.prefect_api.launch_builder import LaunchBuilder
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.runtimes.base import Attempt, End, Intent, Launch, LaunchError
from gpu_flows.schedulers.model import Job, Reason, Start


class PrefectGateway:
    """Implements `gpu_flows.dispatch.gateway.Gateway`."""

    def __init__(self, due_jobs: DueJobs, states: RunStates, launches: LaunchBuilder) -> None:
        self._due_jobs, self._states, self._launches = due_jobs, states, launches
        self._claims: dict[str, UUID] = {}  # ids of the claiming states, until their runs are launched

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        run = self._due_jobs.run(start.job.id)
        claim_id = await self._states.claim(run.id) if run else None
        if run is None or claim_id is None:
            return None
        self._claims[start.job.id] = claim_id
        try:
            return await self._launches.build(run, start, policy, planned)
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                raise LaunchError(f"its job variables cannot be resolved ({error})") from error
            await self._states.release_claim(run.id, "the server was away while it was being launched")
            raise Unreachable(str(error)) from error
        except LaunchError:
            raise
        except Exception as error:
            raise LaunchError(f"its job variables cannot be used ({error})") from error

    async def report_launch(self, attempt: Attempt) -> bool:
        run_id = UUID(attempt.launch.job.id)
        await self._states.set_infrastructure(run_id, attempt.identifier)
        claim_id = self._claims.pop(attempt.launch.job.id, None)
        if claim_id is not None and await self._states.restore_overwritten(run_id, claim_id):
            return False
        if not attempt.launch.handles_intents:
            await self._states.set_running(run_id)
        return True

    async def report_end(
        self, launch: Launch, end: End, intent: Intent | None, why: str = ""
    ) -> tuple[str, str]:
        run_id, claim_id = UUID(launch.job.id), self._claims.pop(launch.job.id, None)
        if claim_id is not None:
            await self._states.restore_overwritten(run_id, claim_id)
        return await self._states.finish(run_id, end, intent, launch.handles_intents, why)

    async def report_cancelled(self, job: Job) -> None:
        await self._states.complete_cancellation(UUID(job.id))

    async def release(self, job: Job, why: str) -> None:
        run_id, claim_id = UUID(job.id), self._claims.pop(job.id, None)
        if claim_id is None or not await self._states.restore_overwritten(run_id, claim_id):
            await self._states.release_claim(run_id, why)

    async def report_launch_failure(self, job: Job, why: str) -> None:
        await self._states.force(UUID(job.id), launch_failed(why))

    async def refuse(self, job: Job, reason: Reason) -> None:
        await self._states.force(UUID(job.id), refused(reason))

    async def refuse_run(self, run: FlowRun, reason: Reason) -> None:
        """Refuse a run that could not be built into a job."""
        await self._states.force(run.id, refused(reason))

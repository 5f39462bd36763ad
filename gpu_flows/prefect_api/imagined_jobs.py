"""Jobs of runs that nobody has submitted: built like real ones, and neither recorded nor remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectException
from prefect.utilities.schema_tools import ValidationError, validate

from gpu_flows.forecasting.imagined import IMAGINED, ImaginedJob, RunRequest
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.job_builder import build_features, build_job
from gpu_flows.prefect_api.job_variables import BadJobVariables
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.reasons import find_refusal


class ImaginedJobs:
    """`correct` returns a duration as this pool's jobs take it."""

    def __init__(
        self,
        client: PrefectClient,
        due_jobs: DueJobs,
        prediction: LivePrediction,
        correct: Callable[[Estimate | None], Estimate | None],
    ) -> None:
        self._client, self._due_jobs = client, due_jobs
        self._prediction, self._correct = prediction, correct

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a command that asks with `deployment_id` and `requests`."""
        requests = [RunRequest(**each) for each in question["requests"]]
        try:
            jobs = await self.imagine(UUID(question["deployment_id"]), requests)
        except (httpx.HTTPError, PrefectException) as error:
            return {"error": f"The worker could not read the deployment: {error}"}
        return {"jobs": IMAGINED.dump_python(jobs, mode="json")}

    async def imagine(self, deployment_id: UUID, requests: list[RunRequest]) -> list[ImaginedJob]:
        """Return the jobs that the runs would be. Raises what reading the deployment raises."""
        deployment = await self._client.read_deployment(deployment_id)
        flow = await self._client.read_flow(deployment.flow_id)
        return [self._imagine(deployment, flow.name, request) for request in requests]

    def _imagine(self, deployment: DeploymentResponse, flow: str, request: RunRequest) -> ImaginedJob:
        run = _imagine_run(deployment, request)
        admission, cluster = self._due_jobs.admission, self._due_jobs.cluster
        try:
            self._check(deployment, request, run)
            due = build_job(run, deployment, self._due_jobs.pool, cluster, admission.queue_priority(run))
        except (BadJobVariables, ValidationError) as error:
            return ImaginedJob(None, code="bad_request", why=str(error))
        job, duration = self._prediction.foresee(due.job, build_features(run, due.job, flow, deployment))
        if refusal := find_refusal(job, self._prediction.cluster):
            return ImaginedJob(None, None, refusal.code, refusal.summary, refusal.fix)
        objection = admission.foresee_objection(due)
        if objection:
            return ImaginedJob(job, self._correct(duration), objection.code, objection.summary, objection.fix)
        return ImaginedJob(job, self._correct(duration))

    def _check(self, deployment: DeploymentResponse, request: RunRequest, run: FlowRun) -> None:
        """Check the run as the server does. Raises ValidationError."""
        if deployment.enforce_parameter_schema and deployment.parameter_openapi_schema:
            validate(run.parameters, deployment.parameter_openapi_schema, raise_on_error=True)
        variables = self._due_jobs.pool.base_job_template.get("variables")
        if variables:
            validate(
                request.variables,
                variables,
                raise_on_error=True,
                ignore_required=True,
                allow_none_with_default=True,
            )


def _imagine_run(deployment: DeploymentResponse, request: RunRequest) -> FlowRun:
    return FlowRun(
        id=uuid4(),
        name=request.name or f"{deployment.name} (dry run)",
        flow_id=deployment.flow_id,
        deployment_id=deployment.id,
        parameters={**(deployment.parameters or {}), **request.parameters},
        job_variables=request.variables,
        tags=request.tags,
        work_queue_name=deployment.work_queue_name,
    )

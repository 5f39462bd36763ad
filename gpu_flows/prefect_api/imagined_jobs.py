"""Jobs of runs that nobody has submitted: built like real ones, and neither recorded nor remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx
from jsonschema.exceptions import best_match
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectException
from prefect.utilities.schema_tools import validate

from gpu_flows.forecasting.imagined import IMAGINED, ImaginedJob, RunRequest
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.job_builder import DueJob, build_features, build_job
from gpu_flows.prefect_api.job_variables import BadJobVariables
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.reasons import find_refusal

MOST_IMAGINED = 1000  # runs of one question
BAD_REQUEST = "bad_request"


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
        if len(requests) > MOST_IMAGINED:
            return {
                "error": f"A dry run looks at {MOST_IMAGINED:,} jobs at most; these are {len(requests):,}."
            }
        try:
            jobs = await self.imagine(UUID(question["deployment_id"]), requests)
        except (httpx.HTTPError, PrefectException) as error:
            return {"error": f"The worker could not read the deployment: {error}"}
        return {"jobs": await asyncio.to_thread(IMAGINED.dump_python, jobs, mode="json")}

    async def imagine(self, deployment_id: UUID, requests: list[RunRequest]) -> list[ImaginedJob]:
        """Return the jobs that the runs would be. Raises what reading the deployment raises."""
        deployment = await self._client.read_deployment(deployment_id)
        flow = await self._client.read_flow(deployment.flow_id)
        runs = [_imagine_run(deployment, request) for request in requests]
        variables = self._due_jobs.pool.base_job_template.get("variables")
        faults = await asyncio.to_thread(_find_faults, deployment, variables, requests, runs)
        imagined: list[ImaginedJob] = []
        accepted: dict[str, DueJob] = {}
        for run, fault in zip(runs, faults, strict=True):
            job = ImaginedJob(None, code=BAD_REQUEST, why=fault) if fault else None
            imagined.append(job or self._imagine(deployment, flow.name, run, accepted))
            await asyncio.sleep(0)  # the pool goes on meanwhile
        return self._object(imagined, accepted)

    def _imagine(
        self, deployment: DeploymentResponse, flow: str, run: FlowRun, accepted: dict[str, DueJob]
    ) -> ImaginedJob:
        """Return the job of a run, and note its request by the job's id if it may enter some time."""
        admission, cluster = self._due_jobs.admission, self._due_jobs.cluster
        try:
            due = build_job(run, deployment, self._due_jobs.pool, cluster, admission.queue_priority(run))
        except BadJobVariables as error:
            return ImaginedJob(None, code=BAD_REQUEST, why=str(error))
        job, duration = self._prediction.foresee(due.job, build_features(run, due.job, flow, deployment))
        if refusal := find_refusal(job, self._prediction.cluster):
            return ImaginedJob(None, None, refusal.code, refusal.summary, refusal.fix)
        accepted[job.id] = due
        return ImaginedJob(job, self._correct(duration))

    def _object(self, imagined: list[ImaginedJob], accepted: dict[str, DueJob]) -> list[ImaginedJob]:
        """Add why jobs may not enter the queue yet, if all of them are due."""
        objections = dict(
            zip(accepted, self._due_jobs.admission.foresee_objections(list(accepted.values())), strict=True)
        )
        return [
            replace(each, code=objection.code, why=objection.summary, fix=objection.fix)
            if each.job and (objection := objections[each.job.id])
            else each
            for each in imagined
        ]


def _find_faults(
    deployment: DeploymentResponse,
    variables: dict[str, Any] | None,
    requests: list[RunRequest],
    runs: list[FlowRun],
) -> list[str]:
    """Return why the server would refuse each run; empty if it would not. Takes a millisecond for each."""
    schema = deployment.parameter_openapi_schema if deployment.enforce_parameter_schema else None
    faults = []
    for request, run in zip(requests, runs, strict=True):
        fault = _find_fault(run.parameters, schema) if schema else ""
        if variables and not fault:
            fault = _find_fault(
                request.variables, variables, ignore_required=True, allow_none_with_default=True
            )
        faults.append(fault)
    return faults


def _find_fault(values: dict[str, Any], schema: dict[str, Any], **rules: bool) -> str:
    """Return what the server says against these values. It checks the schema too, which takes far longer."""
    fault = best_match(validate(values, schema, **rules))
    if fault is None:
        return ""
    where = "" if fault.json_path == "$" else f" for field {fault.json_path.replace('$.', '')!r}"
    return f"Validation failed{where}. Failure reason: {fault.message}"


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

"""A Prefect server in memory, with the client calls that `gpu_flows.prefect_api` makes.

It keeps runs with their state history, and accepts and rejects states like the real server does. `failures`
makes the next calls fail as if the server was away.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import VariableCreate, VariableUpdate
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter, LogFilter
from prefect.client.schemas.objects import (
    Flow,
    FlowRun,
    Log,
    State,
    StateType,
    WorkPool,
    WorkQueue,
)
from prefect.client.schemas.responses import DeploymentResponse, OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Scheduled

from gpu_flows.common.clock import utc_now
from gpu_flows.prefect_api.job_variables import GpuJobVariables

POOL = "pool"


class FakePrefect:
    def __init__(self) -> None:
        self.pool = WorkPool(
            id=uuid4(),
            name=POOL,
            type="gpu",
            base_job_template={
                "job_configuration": {name: f"{{{{ {name} }}}}" for name in GpuJobVariables.model_fields},
                "variables": GpuJobVariables.model_json_schema(),
            },
        )
        self.work_queues: list[WorkQueue] = []
        self.flow = Flow(id=uuid4(), name="train")
        self.runs: dict[UUID, FlowRun] = {}
        self.history: dict[UUID, list[State[Any]]] = {}
        self.deployments: dict[UUID, DeploymentResponse] = {}
        self.logs: list[dict[str, Any]] = []
        self.variables: dict[str, Any] = {}
        self.heartbeats: dict[str, datetime] = {}  # by worker
        self.calls: list[str] = []
        self.failures = 0  # so many next calls get no answer

    @property
    def client(self) -> PrefectClient:
        return cast(PrefectClient, self)

    # -- what a test arranges -----------------------------------------------------------------

    def add_queue(self, name: str, **fields: Any) -> None:
        self.work_queues.append(WorkQueue(name=name, work_pool_id=self.pool.id, **{"priority": 1, **fields}))

    def add_deployment(self, entrypoint: str = "train.py:train", **fields: Any) -> DeploymentResponse:
        deployment = DeploymentResponse(
            id=uuid4(), name="nightly", flow_id=self.flow.id, entrypoint=entrypoint, **fields
        )
        self.deployments[deployment.id] = deployment
        return deployment

    def add_run(self, due_in_s: float = -1.0, queue: str = "default", **fields: Any) -> FlowRun:
        """Add a Scheduled run that becomes due after this many seconds."""
        due = utc_now() + timedelta(seconds=due_in_s)
        run = FlowRun(
            id=uuid4(), flow_id=self.flow.id, work_queue_name=queue, expected_start_time=due, **fields
        )
        self.runs[run.id] = run
        self.history[run.id] = []
        self.set_state(run.id, Scheduled(scheduled_time=due))
        return run

    def set_state(self, run_id: UUID, state: State[Any]) -> State[Any]:
        """Set the state of a run without asking any rule, as another user of the server does."""
        last = self.history[run_id][-1].timestamp if self.history[run_id] else utc_now()
        written = state.model_copy(
            update={"id": uuid4(), "timestamp": max(utc_now(), last + timedelta(microseconds=1))}
        )
        self.history[run_id].append(written)
        scheduled = written.state_details.scheduled_time if written.type == StateType.SCHEDULED else None
        self.runs[run_id] = self.runs[run_id].model_copy(
            update={
                "state": written,
                "state_type": written.type,
                "state_name": written.name,
                "next_scheduled_start_time": scheduled,
            }
        )
        return written

    def state_names(self, run_id: UUID) -> list[str]:
        return [str(state.name) for state in self.history[run_id]]

    # -- the client's calls -------------------------------------------------------------------

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)  # other tasks run while a request is on its way
        if self.failures:
            self.failures -= 1
            raise httpx.ConnectError("the server is away")

    async def read_work_pool(self, name: str) -> WorkPool:
        await self._called("read_work_pool")
        assert name == POOL
        return self.pool.model_copy(deep=True)

    async def read_work_queues(self, work_pool_name: str) -> list[WorkQueue]:
        await self._called("read_work_queues")
        return self.work_queues

    async def get_scheduled_flow_runs_for_work_pool(
        self, pool: str, queues: list[str] | None, before: datetime
    ) -> list[Any]:
        await self._called("poll")
        return []

    async def read_flow_runs(
        self, *, flow_run_filter: FlowRunFilter, limit: int, offset: int = 0, **_: Any
    ) -> list[FlowRun]:
        await self._called("read_flow_runs")
        found = [run for run in self.runs.values() if _matches(run, flow_run_filter)]
        found.sort(key=lambda run: run.next_scheduled_start_time or utc_now())
        return found[offset : offset + min(limit, 200)]

    async def read_flow_run(self, run_id: UUID) -> FlowRun:
        await self._called("read_flow_run")
        return self._run(run_id).model_copy(deep=True)

    async def read_flow_run_states(self, run_id: UUID) -> list[State[Any]]:
        await self._called("read_flow_run_states")
        return list(self.history[run_id])

    async def set_flow_run_state(
        self, run_id: UUID, state: State[Any], force: bool = False
    ) -> OrchestrationResult[Any]:
        await self._called("set_flow_run_state")
        current = self._run(run_id).state_type
        if not force and state.type == StateType.PENDING and current in _NOT_CLAIMABLE:
            details = {"type": "abort_details", "reason": "not claimable"}
            return _answer(SetStateStatus.ABORT, None, details)
        return _answer(SetStateStatus.ACCEPT, self.set_state(run_id, state), {"type": "accept_details"})

    async def update_flow_run(self, run_id: UUID, **changes: Any) -> None:
        await self._called("update_flow_run")
        self.runs[run_id] = self._run(run_id).model_copy(update=changes)

    async def request(
        self, method: str, path: str, path_params: dict[str, Any], json: dict[str, Any]
    ) -> None:
        assert (method, path) == ("PATCH", "/flow_runs/{id}")
        await self._called("request")
        run = self._run(path_params["id"])
        if "empirical_policy" in json:
            json = {**json, "empirical_policy": type(run.empirical_policy)(**json["empirical_policy"])}
        self.runs[run.id] = run.model_copy(update=json)

    async def read_deployments(
        self, *, deployment_filter: DeploymentFilter, limit: int
    ) -> list[DeploymentResponse]:
        await self._called("read_deployments")
        assert deployment_filter.id
        wanted = deployment_filter.id.any_ or []
        return [self.deployments[id] for id in wanted if id in self.deployments]

    async def read_deployment(self, deployment_id: UUID) -> DeploymentResponse:
        await self._called("read_deployment")
        return self.deployments[deployment_id]

    async def read_flow(self, flow_id: UUID) -> Flow:
        await self._called("read_flow")
        return self.flow

    async def create_logs(self, logs: list[dict[str, Any]]) -> None:
        await self._called("create_logs")
        self.logs += logs

    async def read_logs(self, log_filter: LogFilter, limit: int, offset: int, sort: Any) -> list[Log]:
        await self._called("read_logs")
        assert log_filter.flow_run_id
        assert log_filter.timestamp
        runs, after = log_filter.flow_run_id.any_ or [], log_filter.timestamp.after_
        logs = [Log(id=uuid4(), **log) for log in self.logs]
        found = [log for log in logs if log.flow_run_id in runs and (not after or log.timestamp >= after)]
        return found[offset : offset + limit]

    async def create_variable(self, variable: VariableCreate) -> None:
        await self._called("create_variable")
        if variable.name in self.variables:
            raise ObjectAlreadyExists(KeyError(variable.name))
        self.variables[variable.name] = variable.value

    async def update_variable(self, variable: VariableUpdate) -> None:
        await self._called("update_variable")
        assert variable.name in self.variables
        self.variables[variable.name] = variable.value

    async def read_variable_by_name(self, name: str) -> Any:
        await self._called("read_variable")
        return SimpleNamespace(value=self.variables[name]) if name in self.variables else None

    async def read_workers_for_work_pool(self, pool: str) -> list[Any]:
        await self._called("read_workers")
        beats = self.heartbeats.items()
        return [SimpleNamespace(name=name, last_heartbeat_time=at) for name, at in beats]

    def _run(self, run_id: UUID) -> FlowRun:
        if run_id not in self.runs:
            raise ObjectNotFound(KeyError(run_id))
        return self.runs[run_id]


_NOT_CLAIMABLE = (StateType.PENDING, StateType.RUNNING)


def _answer(status: SetStateStatus, state: State[Any] | None, details: Any) -> OrchestrationResult[Any]:
    return OrchestrationResult(status=status, state=state, details=details)


def _matches(run: FlowRun, wanted: FlowRunFilter) -> bool:
    types = wanted.state.type.any_ if wanted.state and wanted.state.type else None
    ids = wanted.id.any_ if wanted.id else None
    start, due = wanted.next_scheduled_start_time, run.next_scheduled_start_time
    return (
        (types is None or run.state_type in types)
        and (ids is None or run.id in ids)
        and not (start and start.before_ and not (due and due <= start.before_))
        and not (start and start.after_ and not (due and due >= start.after_))
    )

"""A pool with the real gateway, states and queue, on a fake server that refuses or loses some answers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import httpx
from fake_lease import FakeLease
from fake_pool import FakeRuntime
from fake_prefect import POOL, FakePrefect
from prefect.states import Completed, Failed, Running

from gpu_flows.common.retry import Backoff
from gpu_flows.dispatch import execution_runner
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.launch_builder import LaunchBuilder
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.server_retry import retry_until_answered
from gpu_flows.prefect_api.worker_log import WorkerLog
from gpu_flows.runtimes.base import Attempt, Launch
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.worker.background_tasks import BackgroundTasks
from gpu_flows.worker.machines import Machines
from gpu_flows.worker.other_runs import OtherRuns
from gpu_flows.worker.queue_sync import QueueSync

LOST = 0  # instead of a status: the server acts, but its answer does not arrive
AWAY = -1  # the request does not arrive

_CALLS = (
    "read_work_queues",
    "read_flow_runs",
    "read_flow_run",
    "read_flow_run_states",
    "set_flow_run_state",
    "update_flow_run",
    "request",
    "read_deployments",
    "read_flow",
)


class FaultyPrefect(FakePrefect):
    """Answers a share of all calls with one of the faults, at random but repeatably."""

    def __init__(self, faults: tuple[int, ...], share: float, seed: int) -> None:
        super().__init__()
        self.faults, self.share, self.random = faults, share, random.Random(seed)
        self.answered: Counter[int] = Counter()  # how often each fault occurred
        for name in _CALLS:
            setattr(self, name, self._make_faulty(getattr(self, name)))

    def _make_faulty(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(*args: Any, **kwargs: Any) -> Any:
            if self.random.random() >= self.share:
                return await call(*args, **kwargs)
            fault = self.random.choice(self.faults)
            self.answered[fault] += 1
            request = httpx.Request("POST", f"http://server/{call.__name__}")
            if fault == AWAY:
                raise httpx.ConnectError("refused", request=request)
            if fault == LOST:
                await call(*args, **kwargs)
                raise httpx.ReadTimeout("no answer", request=request)
            raise httpx.HTTPStatusError(
                f"{fault}", request=request, response=httpx.Response(fault, request=request)
            )

        return answer


class BriefRuntime(FakeRuntime):
    """Attempts end by themselves after a moment. Flows report to the server, without faults, as they run in
    processes of their own."""

    def __init__(self, prefect: FakePrefect) -> None:
        super().__init__()
        self.prefect = prefect

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        attempt = await super().launch(launch, still_wanted)
        asyncio.get_running_loop().call_later(0.002, self._report, launch, Running())
        result = Failed() if launch.job.name.startswith("bad") else Completed()
        asyncio.get_running_loop().call_later(0.006, self._report, launch, result)
        code = 3 if launch.job.name.startswith("bad") and not launch.handles_intents else 0
        asyncio.get_running_loop().call_later(0.008, self.exit, launch.job.id, code)
        return attempt

    def _report(self, launch: Launch, state: Any) -> None:
        if launch.handles_intents:
            self.prefect.set_state(UUID(launch.job.id), state)


class FaultyPool:
    """Create it inside a running event loop."""

    def __init__(self, folder: Path, prefect: FakePrefect, runtime: FakeRuntime | None = None) -> None:
        log = logging.getLogger(__name__)
        self.prefect, self.facts = prefect, list[Any]()
        self.runtime, self.due_jobs = (
            runtime or BriefRuntime(prefect),
            DueJobs(prefect.client, prefect.pool, set()),
        )
        self.job_store, states = JobStore(folder), RunStates(prefect.client)
        gateway = PrefectGateway(
            self.due_jobs,
            states,
            LaunchBuilder(
                prefect.client,
                self.due_jobs,
                lambda: ("worker", None),
                lambda job_id: sum(name.startswith(job_id) for name in self.runtime.launched),
                self.job_store.make_checkpoint_directory,
            ),
            WorkerLog(prefect.client),
        )
        self.dispatcher = Dispatcher(
            POOL,
            Engine(declare("1x4"), Fifo(), can_preempt=True),
            self.runtime,
            gateway,
            self.job_store,
            self.record,
            log,
            on_finished=lambda job: self.queue.on_finished(job),
        )
        self.tasks = BackgroundTasks(log)
        lease, machines = FakeLease(), Machines(prefect.client, POOL, "", lambda: "worker")
        self.queue = QueueSync(
            self.due_jobs,
            states,
            gateway,
            self.dispatcher,
            self.record,
            self.tasks,
            lambda delay: None,
            OtherRuns(self.due_jobs, states, self.dispatcher, lease, machines, log),
        )
        self.dispatcher.active = True

    def record(self, *facts: Any) -> None:
        self.facts.extend(facts)

    def count_facts(self, table: str) -> Counter[str]:
        """How many facts this table has for each job."""
        return Counter(fact.job_id for fact in self.facts if fact.table == table)

    async def serve(self, until: Callable[[], bool], timeout_s: float) -> None:
        """Poll as a worker does, until the condition holds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not until() and asyncio.get_running_loop().time() < deadline:
            with suppress(httpx.HTTPError):
                await self.queue.sync_all()
            await asyncio.sleep(0.005)
        await self.dispatcher.close()
        await self.tasks.close()


def without_pauses() -> Any:
    """Let retries and pauses take a moment only."""
    moment = Backoff(first_s=0.003)
    stack = mock.patch.multiple(
        execution_runner, REPORT_DELAY_S=0.0, PAUSE_WHEN_UNREACHABLE_S=0.01, AFTER_ERRORS=moment
    )
    return stack, mock.patch.object(retry_until_answered, "__defaults__", (moment,))

"""A person suspends a running job: it saves, frees its devices, and continues after it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_pool import FakeRuntime, happens
from fake_prefect import FakePrefect
from faulty_pool import FaultyPool, without_pauses
from prefect.client.schemas.objects import StateType
from prefect.events import Event
from prefect.states import Cancelled, Paused, Running, Scheduled, Suspended

from gpu_flows.checkpoints.contract import CHECKPOINTED


class SuspendedRun:
    """A run that runs, and the pool that runs it. Create it inside a running event loop."""

    def __init__(self, folder: Path) -> None:
        self.prefect, self.runtime = FakePrefect(), FakeRuntime()
        self.pool = FaultyPool(folder, self.prefect, self.runtime)
        self.id = self.prefect.add_run(name="a", job_variables={"command": "train"}).id
        self.job_id = str(self.id)

    async def until(self, condition: Callable[[], object]) -> None:
        assert await happens(condition), f"it never happened; its state is {self.state()}"

    async def start(self) -> None:
        await self.pool.queue.sync_all()
        await self.until(lambda: self.state() == StateType.RUNNING)

    def state(self) -> StateType | None:
        return self.prefect.runs[self.id].state_type

    def send_event(self, state_type: str, name: str = "Suspended") -> None:
        resource = SimpleNamespace(id=f"prefect.flow-run.{self.id}")
        event = SimpleNamespace(
            resource=resource,
            event=f"prefect.flow-run.{name}",
            payload={"validated_state": {"type": state_type}},
        )
        self.pool.queue.on_run_event(cast(Event, event))

    async def close(self) -> None:
        await self.pool.dispatcher.close()
        await self.pool.tasks.close()


def run_with_pool(folder: Path, test: Callable[[SuspendedRun], Awaitable[Any]]) -> None:
    async def run() -> None:
        suspended = SuspendedRun(folder)
        await suspended.start()
        await test(suspended)
        await suspended.close()

    pauses, retries = without_pauses()
    with pauses, retries:
        asyncio.run(run())


@pytest.mark.parametrize("noticed_by", ["event", "poll"])
def test_a_suspended_job_frees_its_devices_and_continues_when_resumed(
    tmp_path: Path, noticed_by: str
) -> None:
    async def suspend(run: SuspendedRun) -> None:
        run.prefect.set_state(run.id, Suspended())
        if noticed_by == "event":
            run.send_event("PAUSED")
        else:
            await run.pool.queue.sync_all()
        await run.until(lambda: run.runtime.stop_requests == [(f"{run.job_id}.1", "reschedule")])
        run.runtime.exit(run.job_id, CHECKPOINTED)
        await run.until(lambda: not run.pool.dispatcher.executing())
        await run.pool.queue.sync_all()
        assert run.state() == StateType.PAUSED, "it waits until someone resumes it"
        assert not run.pool.dispatcher.engine.running, "its devices are free"
        assert not run.runtime.live
        assert run.prefect.runs[run.id].infrastructure_pid is None
        (end,) = [fact for fact in run.pool.facts if fact.table == "attempt_ends"]
        assert (end.outcome, end.exit_code) == ("suspended", CHECKPOINTED)
        assert not run.pool.count_facts("job_ends")
        assert run.pool.job_store.will_continue(run.job_id), "its checkpoints are kept"

        run.prefect.set_state(run.id, Scheduled(name="Resuming"))
        await run.pool.queue.sync_all()
        await run.until(lambda: run.runtime.launched == [f"{run.job_id}.1", f"{run.job_id}.2"])
        run.runtime.exit(run.job_id, 0)
        await run.until(lambda: run.state() == StateType.COMPLETED)

    run_with_pool(tmp_path, suspend)


def test_a_job_that_is_resumed_before_it_has_stopped_waits_again(tmp_path: Path) -> None:
    async def suspend(run: SuspendedRun) -> None:
        run.prefect.set_state(run.id, Suspended())
        await run.pool.queue.sync_all()
        await run.until(lambda: run.runtime.stop_requests)
        run.prefect.set_state(run.id, Scheduled(name="Resuming"))
        run.runtime.exit(run.job_id, CHECKPOINTED)
        await run.until(lambda: run.runtime.launched == [f"{run.job_id}.1", f"{run.job_id}.2"])
        run.runtime.exit(run.job_id, 0)
        await run.until(lambda: run.state() == StateType.COMPLETED)

    run_with_pool(tmp_path, suspend)


def test_a_suspended_job_that_is_cancelled_has_ended(tmp_path: Path) -> None:
    async def cancel(run: SuspendedRun) -> None:
        run.prefect.set_state(run.id, Suspended())
        await run.pool.queue.sync_all()
        await run.until(lambda: run.runtime.stop_requests)
        run.runtime.exit(run.job_id, CHECKPOINTED)
        await run.until(lambda: not run.pool.dispatcher.executing())
        run.prefect.set_state(run.id, Cancelled())
        for _ in range(2):  # once is recorded once, however often the server tells it
            run.send_event("CANCELLED", "Cancelled")
        await run.until(lambda: run.pool.count_facts("job_ends"))
        await asyncio.sleep(0.02)
        (end,) = [fact for fact in run.pool.facts if fact.table == "job_ends"]
        assert end.outcome == "cancelled"
        assert not run.pool.job_store.will_continue(run.job_id)

    run_with_pool(tmp_path, cancel)


def test_a_paused_flow_keeps_its_process(tmp_path: Path) -> None:
    """`pause_flow_run` waits inside the flow; only Suspend frees the devices."""

    async def pause(run: SuspendedRun) -> None:
        run.prefect.set_state(run.id, Paused())
        run.send_event("PAUSED")
        await run.pool.queue.sync_all()
        await asyncio.sleep(0.02)
        assert not run.runtime.stop_requests
        run.prefect.set_state(run.id, Running())
        run.runtime.exit(run.job_id, 0)
        await run.until(lambda: run.state() == StateType.COMPLETED)

    run_with_pool(tmp_path, pause)

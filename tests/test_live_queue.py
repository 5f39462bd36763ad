"""The queue of a pool: many runs, limits, pauses, work-queue priorities and due times."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from conftest import eventually
from live import Pool
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, StateType

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.schedulers.model import Reason

pytestmark = pytest.mark.slow


def test_runs_on_many_pages_are_all_found(server: Stack, new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("1x1:GTX 1080 Ti:11", worker=False)
    pool = Pool(stack)
    blocker = pool.submit("sleep 600", grace_seconds=0)
    _multiply(server, pool.submit("true"), 1049)
    stack.start_worker()
    eventually(lambda: len(pool.status().waiting) == 1050, "all 1,050 wait in the worker's view")
    places = [job["submitted"] for job in pool.status().waiting]
    assert places == sorted(places)
    pool.request("DELETE", f"/deployments/{pool.deployment}")
    pool.cancel(blocker)


def test_short_jobs_in_a_long_queue_run_once_each(
    server: Stack, new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    """Reading a long queue takes a while. Short jobs that start and end in the meantime must not be queued
    again."""
    stack = new_stack("1x4:GTX 1080 Ti:11", worker=False)
    pool = Pool(stack)
    launches = tmp_path / "launches"
    _multiply(server, pool.command(f"sh -c 'echo $GPU_FLOWS_ATTEMPT >> {launches}'"), 249)
    stack.start_worker(PREFECT_WORKER_QUERY_SECONDS="0.2")
    done = "select count(*) from job_ends where outcome = 'completed'"
    eventually(lambda: pool.sql(done)[0][0] >= 60, "sixty jobs have run", 240)
    stack.stop_worker()
    launched = launches.read_text().split()
    assert len(launched) == len(set(launched))
    assert not [name for name in launched if not name.endswith(".1")], "no job ran twice"


def _multiply(server: Stack, run: str, times: int) -> None:
    """Copy a waiting run inside the server's database. Through the API this would take minutes with
    SQLite."""
    with closing(sqlite3.connect(server.home / "prefect" / "prefect.db", timeout=60)) as database, database:
        database.row_factory = sqlite3.Row
        original = dict(database.execute("select * from flow_run where id = ?", [run]).fetchone())
        state = dict(
            database.execute("select * from flow_run_state where id = ?", [original["state_id"]]).fetchone()
        )
        for _ in range(times):
            run_id, state_id = str(uuid4()), str(uuid4())
            copies = {
                "flow_run": {**original, "id": run_id, "state_id": state_id, "idempotency_key": run_id},
                "flow_run_state": {**state, "id": state_id, "flow_run_id": run_id},
            }
            for table, row in copies.items():
                marks = ", ".join("?" * len(row))
                database.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", [*row.values()])


@pytest.mark.long
def test_pauses_limits_and_queue_priorities(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("1x4:GTX 1080 Ti:11", worker=False)
    pool = Pool(stack)
    where = f"/work_pools/{stack.pool}"
    pool.request("PATCH", where, json={"is_paused": True, "concurrency_limit": 1})
    pool.request("POST", f"{where}/queues", json={"name": "urgent", "priority": 1})
    stack.start_worker()
    ordinary = [pool.submit("sleep 2") for _ in range(2)]
    body = {"parameters": {"command": "sleep 2"}, "work_queue_name": "urgent"}
    urgent = pool.post(f"/deployments/{pool.deployment}/create_flow_run", body)["id"]
    began = pool.status().at
    eventually(lambda: pool.status().at > began + 12, "the worker has polled at least once")
    states = {pool.state(run) for run in [*ordinary, urgent]}
    assert states <= {"Scheduled", "Late", "AwaitingGPU"}, "a paused pool starts nothing"

    pool.request("PATCH", where, json={"is_paused": False})
    for run in [urgent, *ordinary]:
        pool.until(run, "Completed")
    rows = eventually(
        lambda: (
            (found := pool.sql("select job_id, started, ended from attempt_history order by started"))
            and len(found) == 3
            and all(row[2] for row in found)
            and found
        ),
        "three attempts are recorded",
    )
    assert rows[0][0] == urgent, "the queue of higher priority is served first"
    assert all(later[1] >= earlier[2] for earlier, later in pairwise(rows)), (
        "the pool's limit allows one run at a time"
    )


def test_a_run_that_is_due_later_starts_then(new_stack: Callable[..., Stack]) -> None:
    pool = Pool(new_stack())
    due = datetime.now(UTC) + timedelta(seconds=4)
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
    body = {"parameters": {"command": "true"}, "state": state}
    run = pool.post(f"/deployments/{pool.deployment}/create_flow_run", body)["id"]
    done = pool.until(run, "Completed")
    assert datetime.fromisoformat(done["start_time"]) >= due
    turnaround = eventually(lambda: pool.sql("select submitted from jobs"), "it is recorded")
    assert abs((turnaround[0][0] - due).total_seconds()) < 0.01, "the time of submission is the due time"


class StaleView(PrefectClient):
    """A client that reads an outdated state of a run, as if the run had been changed after the read."""

    async def read_flow_run(self, flow_run_id: UUID) -> FlowRun:
        run = await super().read_flow_run(flow_run_id)
        run.state_type = StateType.SCHEDULED
        return run


@pytest.mark.parametrize("write", ["note", "claim"])
def test_neither_a_waiting_note_nor_a_claim_undoes_a_cancellation(
    new_stack: Callable[..., Stack], write: str
) -> None:
    stack = new_stack(worker=False)
    pool = Pool(stack)
    run = pool.submit("true")
    pool.post(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLED", "message": "by Ada"}})

    async def write_late() -> Any:
        async with StaleView(stack.api_url) as client:
            states = RunStates(client)
            if write == "note":
                return await states.show_reason(UUID(run), Reason("capacity", "busy"), lambda _: True)
            claim = await states.claim(UUID(run))
            return claim and not await states.restore_overwritten(UUID(run), claim)

    assert not asyncio.run(write_late())
    assert pool.state(run) == "Cancelled"
    assert pool.run(run)["state"]["message"] == "by Ada"


def test_a_waiting_note_is_never_written_after_a_claim(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(worker=False)
    pool = Pool(stack)
    run = pool.submit("true")

    async def race() -> None:
        async with PrefectClient(stack.api_url) as client:
            states = RunStates(client)
            waits = {"still": True}
            note = asyncio.ensure_future(
                states.show_reason(UUID(run), Reason("capacity", "busy"), lambda _: waits["still"])
            )
            waits["still"] = False  # the engine starts the job; no note may be written after this
            assert await states.claim(UUID(run))
            await note

    asyncio.run(race())
    assert pool.state(run) == "Pending"

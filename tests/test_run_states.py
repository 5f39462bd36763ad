"""The states that the worker sets on runs: claims, waiting reasons, ends and requeues."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fake_lease import FakeLease
from fake_prefect import FakePrefect
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import (
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Failed,
    Paused,
    Pending,
    Running,
    Scheduled,
    Suspended,
)

from gpu_flows.checkpoints import contract
from gpu_flows.common.retry import Backoff
from gpu_flows.dispatch.gateway import Unreachable
from gpu_flows.prefect_api import final_states, server_retry
from gpu_flows.prefect_api.claims import Claim, parse_claim
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.server_retry import retry_until_answered
from gpu_flows.runtimes.base import End, Intent
from gpu_flows.schedulers.model import Reason

BUSY = Reason("capacity", "busy")


@pytest.fixture
def prefect() -> FakePrefect:
    return FakePrefect()


@pytest.fixture
def states(prefect: FakePrefect) -> RunStates:
    return RunStates(prefect.client)


def claimed(prefect: FakePrefect, states: RunStates) -> FlowRun:
    run = prefect.add_run()
    assert asyncio.run(states.claim(run.id))
    return prefect.runs[run.id]


def running(prefect: FakePrefect, **fields: Any) -> UUID:
    run = prefect.add_run(infrastructure_pid="here:1", run_count=1, **fields)
    prefect.set_state(run.id, Running())
    return run.id


# -- claiming ---------------------------------------------------------------------------------


def test_the_first_claim_is_accepted_and_the_second_is_lost(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()
    claim = asyncio.run(states.claim(run.id))
    assert claim == prefect.history[run.id][-1].id
    assert asyncio.run(RunStates(prefect.client).claim(run.id)) is None
    assert prefect.state_names(run.id) == ["Scheduled", "Pending"]


def test_a_deleted_run_cannot_be_claimed(states: RunStates) -> None:
    assert asyncio.run(states.claim(uuid4())) is None


def test_a_claim_without_an_answer_is_not_repeated(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()
    prefect.failures = 1
    with pytest.raises(Unreachable, match="the server is away"):
        asyncio.run(states.claim(run.id))
    assert prefect.calls == ["set_flow_run_state"]


def test_a_claim_that_overwrote_a_cancellation_is_undone(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()
    prefect.set_state(run.id, Cancelled(message="by Ada"))
    claim = asyncio.run(states.claim(run.id))
    assert claim
    assert asyncio.run(states.restore_overwritten(run.id, claim))
    assert prefect.history[run.id][-1].message == "by Ada"
    assert prefect.state_names(run.id)[-1] == "Cancelled"


def test_a_claim_that_overwrote_nothing_is_kept(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()
    claim = asyncio.run(states.claim(run.id))
    assert claim
    assert not asyncio.run(states.restore_overwritten(run.id, claim))
    assert prefect.state_names(run.id)[-1] == "Pending"


def test_an_overwritten_cancelling_run_becomes_cancelled(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()
    prefect.set_state(run.id, Cancelling())
    claim = asyncio.run(states.claim(run.id))
    assert claim
    assert asyncio.run(states.restore_overwritten(run.id, claim))
    assert prefect.state_names(run.id)[-1] == "Cancelled"


def test_a_released_claim_returns_the_run_to_its_place(prefect: FakePrefect, states: RunStates) -> None:
    run = claimed(prefect, states)
    asyncio.run(states.release_claim(run.id, "its node is away"))
    state = prefect.history[run.id][-1]
    assert (state.name, state.message) == ("AwaitingGPU", "Waits again: its node is away.")
    assert state.state_details.scheduled_time == run.expected_start_time


@pytest.mark.parametrize("later", [Running(), Cancelled()])
def test_only_a_pending_run_is_released(prefect: FakePrefect, states: RunStates, later: State[Any]) -> None:
    run = claimed(prefect, states)
    prefect.set_state(run.id, later)
    asyncio.run(states.release_claim(run.id, "late"))
    assert prefect.state_names(run.id)[-1] == later.name


def test_a_claim_says_under_which_lease_and_where_the_run_runs(prefect: FakePrefect) -> None:
    states = RunStates(prefect.client, FakeLease("17"), lambda: "w 1", "host:/folder")
    run = prefect.add_run()
    assert asyncio.run(states.claim(run.id, ["GPU-1", "GPU-2"]))
    claim = asyncio.run(states.read_claim(prefect.runs[run.id]))
    assert claim
    assert claim == Claim("17", "w 1", "host:/folder", ("GPU-1", "GPU-2"), claim.id)
    assert claim.host == "host"
    prefect.set_state(run.id, Running())
    assert asyncio.run(states.read_claim(prefect.runs[run.id])) == claim, "it is in the run's history"
    prefect.set_state(run.id, Scheduled())
    assert asyncio.run(states.read_claim(prefect.runs[run.id])) is None, "it waits again"
    prefect.set_state(run.id, Pending(message="by another kind of worker"))
    assert asyncio.run(states.read_claim(prefect.runs[run.id])) is None


def test_without_a_valid_lease_nothing_is_claimed(prefect: FakePrefect) -> None:
    states = RunStates(prefect.client, FakeLease(valid=False))
    run = prefect.add_run()
    with pytest.raises(Unreachable, match="another worker"):
        asyncio.run(states.claim(run.id))
    assert prefect.state_names(run.id) == ["Scheduled"]


def test_the_lease_is_checked_after_the_wait_for_another_request(prefect: FakePrefect) -> None:
    lease = FakeLease()
    states = RunStates(prefect.client, lease)
    run = prefect.add_run()

    async def race() -> None:
        async with states._lock(run.id):
            claiming = asyncio.ensure_future(states.claim(run.id))
            await asyncio.sleep(0)
            lease.valid = False
        with pytest.raises(Unreachable):
            await claiming

    asyncio.run(race())
    assert prefect.state_names(run.id) == ["Scheduled"]


def test_the_claim_of_another_place_is_not_released(prefect: FakePrefect) -> None:
    here, there = (RunStates(prefect.client, place=place) for place in ("here:/", "there:/"))
    run = claimed(prefect, there)
    asyncio.run(here.release_claim(run.id, "late"))
    assert prefect.state_names(run.id)[-1] == "Pending"
    claim = asyncio.run(here.read_claim(prefect.runs[run.id]))
    asyncio.run(here.release_claim(run.id, "it is dead", claim))
    assert prefect.state_names(run.id)[-1] == "AwaitingGPU"
    assert asyncio.run(there.claim(run.id))
    asyncio.run(here.release_claim(run.id, "late", claim))
    assert prefect.state_names(run.id)[-1] == "Pending", "another claim, though of the same worker and lease"


def test_a_claim_without_an_id_is_understood() -> None:
    claim = Claim("1", "w", "here:/", ("GPU-1",))
    assert parse_claim('Claimed under lease 1 by worker w at here:/; devices: ["GPU-1"].') == claim
    assert parse_claim(f"Starting on node-1: GPU 0.\n{claim}") == claim, "the first line is for people"


@pytest.mark.parametrize(
    ("before", "outcome", "name"),
    [
        (Running(), "crashed", "Lost"),
        (Cancelling(), "cancelled", "Cancelled"),
        (Completed(), "", "Completed"),
    ],
)
def test_the_run_of_a_dead_machine_has_crashed(
    prefect: FakePrefect, states: RunStates, before: State[Any], outcome: str, name: str
) -> None:
    run = claimed(prefect, states)
    prefect.set_state(run.id, before)
    assert asyncio.run(states.report_lost(run.id, "machine x is dead")) == outcome
    assert prefect.state_names(run.id)[-1] == name


# -- waiting ----------------------------------------------------------------------------------


def test_the_reason_is_shown_on_a_waiting_run(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()
    asyncio.run(states.show_reason(run.id, BUSY, lambda _: True))
    state = prefect.history[run.id][-1]
    assert (state.name, state.message) == ("AwaitingGPU", str(BUSY))
    assert state.state_details.scheduled_time == run.expected_start_time, "it keeps its place"


def test_a_reason_never_follows_a_claim(prefect: FakePrefect, states: RunStates) -> None:
    run = prefect.add_run()

    async def race() -> None:
        waiting = True
        note = asyncio.ensure_future(states.show_reason(run.id, BUSY, lambda _: waiting))
        await asyncio.sleep(0)  # the run is being read
        waiting = False  # the engine starts the job
        assert await states.claim(run.id)
        await note

    asyncio.run(race())
    assert prefect.state_names(run.id) == ["Scheduled", "Pending"]


def test_a_claim_waits_for_a_reason_that_is_being_written(prefect: FakePrefect, states: RunStates) -> None:
    run, write = prefect.add_run(), prefect.set_flow_run_state

    async def slow_write(run_id: UUID, state: State[Any], force: bool = False) -> Any:
        await asyncio.sleep(0.01 if state.name == "AwaitingGPU" else 0)
        return await write(run_id, state, force)

    async def race() -> None:
        prefect.set_flow_run_state = slow_write  # type: ignore[method-assign]
        note = asyncio.ensure_future(states.show_reason(run.id, BUSY, lambda _: True))
        await asyncio.sleep(0.001)
        assert await states.claim(run.id)
        await note

    asyncio.run(race())
    assert prefect.state_names(run.id) == ["Scheduled", "AwaitingGPU", "Pending"]


def test_a_reason_on_a_preempted_run_keeps_the_first_line(prefect: FakePrefect, states: RunStates) -> None:
    run_id = running(prefect)
    asyncio.run(states.finish(run_id, End(0), "reschedule", True, "for job b"))
    for _ in range(2):
        asyncio.run(states.show_reason(run_id, BUSY, lambda _: True))
    state = prefect.history[run_id][-1]
    assert (state.name, state.message) == ("Preempted", f"for job b\n{BUSY}")


# -- ending -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "end", "intent", "reports_itself", "outcome"),
    [
        (Completed(), End(1), None, True, "completed"),
        (Running(), End(0), None, False, "completed"),
        (Running(), End(3), None, False, "failed"),
        (Running(), End(3), None, True, "crashed"),
        (Running(), End(0), None, True, "crashed"),
        (Running(), End(-9), None, False, "crashed"),
        (Running(), End(137), None, False, "crashed"),
        (Running(), End(1, oom_killed=True), None, False, "crashed"),
        (Running(), End(None), None, False, "crashed"),
        (Running(), End(-15), "cancel", True, "cancelled"),
        (Crashed(), End(-15), "cancel", True, "cancelled"),
        (Cancelling(), End(0), None, False, "cancelled"),
        (Crashed(), End(1), None, True, "crashed"),
        (Suspended(), End(0), None, True, "suspended"),
        (Suspended(), End(143), "reschedule", False, "suspended"),
        (Suspended(), End(0), "reschedule", False, "completed"),
        (Suspended(), End(3), None, False, "failed"),
        (Suspended(), End(0), "cancel", True, "cancelled"),
        (Suspended(), End(lost=True), "reschedule", True, "crashed"),
        (Paused(), End(1), None, True, "crashed"),
        (Pending(), End(0), "reschedule", False, "completed"),
        (Running(), End(0), "reschedule", True, "preempted"),
        (Running(), End(1), "reschedule", False, "preempted"),
        (Crashed(), End(-15), "reschedule", True, "preempted"),
        (Completed(), End(0), "reschedule", True, "completed"),
        (Cancelling(), End(0), "reschedule", True, "cancelled"),
        (Running(), End(None, lost=True), "reschedule", True, "crashed"),
    ],
)
def test_outcomes(
    prefect: FakePrefect,
    states: RunStates,
    current: State[Any],
    end: End,
    intent: Intent | None,
    reports_itself: bool,
    outcome: str,
) -> None:
    run_id = running(prefect)
    prefect.set_state(run_id, current)
    assert asyncio.run(states.finish(run_id, end, intent, reports_itself, "why"))[0] == outcome
    expected = {"preempted": StateType.SCHEDULED, "suspended": StateType.PAUSED}
    assert prefect.runs[run_id].state_type == (expected.get(outcome) or StateType(outcome.upper()))


def test_a_requeued_run_keeps_its_place_and_its_retries(prefect: FakePrefect, states: RunStates) -> None:
    run_id = running(prefect)
    prefect.set_state(run_id, Crashed())
    assert asyncio.run(states.finish(run_id, End(-15), "reschedule", True, "for job b")) == (
        "preempted",
        "for job b",
    )
    run = prefect.runs[run_id]
    assert run.state
    assert (run.state.name, run.state.message) == ("Preempted", "for job b")
    assert run.next_scheduled_start_time == run.expected_start_time
    assert run.infrastructure_pid is None
    assert (run.empirical_policy.retry_type, run.empirical_policy.resuming) == ("reschedule", True)


@pytest.mark.parametrize(
    ("current", "end", "reports_itself", "outcome"),
    [
        (Failed(), End(0), True, "preempted"),  # a flow reports that it failed
        (Crashed(), End(1), True, "preempted"),
        (Running(), End(1), False, "preempted"),  # a command
        (Completed(), End(0), True, "completed"),  # it met the error and went on
        (Running(), End(0), False, "completed"),
        (Cancelled(), End(1), True, "cancelled"),
        (Cancelling(), End(1), False, "cancelled"),
    ],
)
def test_a_run_that_ran_out_of_memory_waits_again(
    prefect: FakePrefect,
    states: RunStates,
    current: State[Any],
    end: End,
    reports_itself: bool,
    outcome: str,
) -> None:
    run_id = running(prefect)
    prefect.set_state(run_id, current)
    for _ in range(2):  # the second time is of a worker that finds it requeued
        found, _ = asyncio.run(states.finish(run_id, end, None, reports_itself, "more", out_of_memory=True))
        assert found == outcome
    run = prefect.runs[run_id]
    assert prefect.state_names(run_id).count("OutOfMemory") == (outcome == "preempted")
    if outcome == "preempted":
        assert run.next_scheduled_start_time == run.expected_start_time
        assert (run.empirical_policy.retry_type, run.empirical_policy.resuming) == ("reschedule", True)


def test_a_flow_that_can_get_no_more_memory_has_failed(prefect: FakePrefect, states: RunStates) -> None:
    run_id = running(prefect)
    end = End(contract.OUT_OF_MEMORY, detail="No device has more.")
    assert asyncio.run(states.finish(run_id, end, None, True)) == ("failed", "No device has more.")


def test_a_run_is_requeued_once(prefect: FakePrefect, states: RunStates) -> None:
    run_id = running(prefect)
    for _ in range(2):
        assert asyncio.run(states.finish(run_id, End(0), "reschedule", True, "why"))[0] == "preempted"
    assert prefect.state_names(run_id).count("Preempted") == 1


def test_a_requeue_that_overwrote_a_cancellation_is_undone(prefect: FakePrefect, states: RunStates) -> None:
    run_id, read = running(prefect), prefect.read_flow_run
    reads: list[FlowRun] = []

    async def read_then_cancel(id: UUID) -> FlowRun:
        """Another user cancels the run right after the worker has read it."""
        run = await read(id)
        if not reads:
            prefect.set_state(id, Cancelling())
        reads.append(run)
        return run

    prefect.read_flow_run = read_then_cancel  # type: ignore[method-assign]
    assert asyncio.run(states.finish(run_id, End(0), "reschedule", True, "why"))[0] == "cancelled"
    assert prefect.state_names(run_id)[-1] == "Cancelled"


def test_the_end_of_a_deleted_run_is_lost(states: RunStates) -> None:
    assert asyncio.run(states.finish(uuid4(), End(0), None, True)) == ("lost", "the run was deleted")


@pytest.mark.parametrize(
    ("infrastructure", "name"),
    [(None, "Cancelled"), (f"{socket.gethostname()}:1", "Cancelled"), ("other:1", "Cancelling")],
)
def test_a_cancellation_is_completed_for_runs_of_this_machine(
    prefect: FakePrefect, states: RunStates, infrastructure: str | None, name: str
) -> None:
    run = prefect.add_run(infrastructure_pid=infrastructure)
    prefect.set_state(run.id, Cancelling())
    asyncio.run(states.complete_cancellation(run.id))
    assert prefect.state_names(run.id)[-1] == name


def test_a_job_that_does_not_report_itself_is_set_to_running(prefect: FakePrefect, states: RunStates) -> None:
    run = claimed(prefect, states)
    asyncio.run(states.set_running(run.id))
    assert prefect.state_names(run.id)[-1] == "Running"
    prefect.set_state(run.id, Cancelling())
    asyncio.run(states.set_running(run.id))
    assert prefect.state_names(run.id)[-1] == "Cancelling"


def test_crash_messages_name_the_signal_or_the_runtime_detail() -> None:
    def message(end: End) -> str:
        return str(final_states.ended(StateType.RUNNING, end, None, True).message)

    assert "signal 9 (out of memory" in message(End(137))
    assert message(End(137, oom_killed=True, detail="Out of memory.")) == "Out of memory."
    assert "exit code 2 before it reported a result" in message(End(2))
    assert "no worker was watching" in message(End(None))


# -- a server that does not answer ------------------------------------------------------------


def test_reports_are_repeated_until_the_server_answers(
    prefect: FakePrefect, states: RunStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = running(prefect)
    monkeypatch.setattr(retry_until_answered, "__defaults__", (Backoff(first_s=0),))
    prefect.failures = 3
    assert asyncio.run(states.finish(run_id, End(0), None, False))[0] == "completed"
    assert prefect.failures == 0


def http_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://server")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def test_refusals_that_do_not_concern_the_call_are_temporary() -> None:
    temporary = (500, 503, 429, 408, 401, 403)
    assert all(server_retry.is_temporary(http_error(status)) for status in temporary)
    assert server_retry.is_temporary(httpx.ReadTimeout("late"))
    assert not server_retry.is_temporary(ValueError())
    assert not server_retry.is_temporary(http_error(422))


class Refusing:
    """A call that the server answers with this status, a number of times."""

    def __init__(self, status: int, times: int) -> None:
        self.status, self.times, self.calls = status, times, 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise http_error(self.status)
        return self.calls


@pytest.mark.parametrize("status", [401, 403, 429, 500])
def test_a_refusal_is_repeated_for_as_long_as_it_takes(status: int, caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(retry_until_answered(Refusing(status, 40), Backoff(first_s=0))) == 41
    assert len(caplog.records) == 1, "it is logged once"


def test_a_call_is_repeated_a_few_times_if_the_server_rejects_its_content() -> None:
    assert asyncio.run(retry_until_answered(Refusing(422, 4), Backoff(first_s=0))) == 5
    rejected = Refusing(422, 1000)
    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(retry_until_answered(rejected, Backoff(first_s=0)))
    assert rejected.calls == server_retry.TRIES_WHEN_REJECTED


def test_an_end_that_the_server_rejects_is_still_an_end(
    prefect: FakePrefect, states: RunStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = running(prefect)
    monkeypatch.setattr(retry_until_answered, "__defaults__", (Backoff(first_s=0),))
    monkeypatch.setattr(prefect, "read_flow_run", lambda _: Refusing(422, 1)())
    outcome, detail = asyncio.run(states.finish(run_id, End(3), None, False))
    assert outcome == "failed"
    assert "rejects" in detail

"""What we write on a flow run: why it waits, that it is ours, what became of it.

A run stays Scheduled until its devices are in hand. Moving it to Pending is the claim, and of two
that try the server lets one win. But it would let either also follow a cancellation or a result:
so the writes that could undo somebody's decision, the claim, the note on a waiting run and the
return of a preempted one, look at the run's history afterwards, and put back what they find they have
covered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Container
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending, Running, Scheduled

from gpu_flows.dispatch.gateway import REQUEUED, Unreachable
from gpu_flows.runtimes.base import End, Intent
from gpu_flows.schedulers.model import Reason

WAITING = "AwaitingGPU"
PREEMPTED = "Preempted"  # stays the name of the state for as long as the run waits again
T = TypeVar("T")


ABANDONED_AFTER = timedelta(minutes=2)


def claim_mark(pool: str) -> str:
    """What a claimed run says until its process speaks for it: who claimed it (and from where).
    A worker that finds its own mark on a run it does not carry knows that it died in between."""
    return f"Claimed by the gpu worker of pool {pool!r} on "


class RunStates:
    def __init__(self, client: PrefectClient, pool: str) -> None:
        self._client = client
        self._mark = claim_mark(pool)
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    def _alone_with(self, run_id: UUID) -> asyncio.Lock:
        """Notes and claims of one run take turns: a note that arrives after a claim would undo it."""
        return self._locks.setdefault(run_id, asyncio.Lock())

    # -- waiting ------------------------------------------------------------------------------

    async def explain(self, run_id: UUID, reason: Reason, still_waits: Callable[[UUID], bool]) -> None:
        """Show on a waiting run why it waits. `still_waits` is asked last of all, because the
        dispatcher may claim the run at any moment, and a note must never follow a claim."""
        run = await self._client.read_flow_run(run_id)
        due = run.next_scheduled_start_time or run.expected_start_time
        name, message = WAITING, str(reason)
        if run.state and run.state.name == PREEMPTED:
            name, message = PREEMPTED, f"{_first_line(run.state.message)}\n{reason}"
        note: State[None] = Scheduled(name=name, message=message, scheduled_time=due)
        async with self._alone_with(run_id):
            if run.state_type != StateType.SCHEDULED or not still_waits(run_id):
                return
            written = await self._client.set_flow_run_state(run_id, note)
        if written.status == SetStateStatus.ACCEPT and written.state:
            await self.covered_nothing(run_id, written.state.id)

    async def covered_nothing(
        self, run_id: UUID, ours: UUID, expected: Container[StateType] = (StateType.SCHEDULED,)
    ) -> bool:
        """Whether the state before ours was one to wait in, or another that was expected. If it was not,
        it is put back."""
        return await until_answered(lambda: self._covered_nothing(run_id, ours, expected)) is not False

    async def _covered_nothing(self, run_id: UUID, ours: UUID, expected: Container[StateType]) -> bool:
        history = sorted(await self._client.read_flow_run_states(run_id), key=lambda s: s.timestamp)
        at = next((i for i, state in enumerate(history) if state.id == ours), 0)
        before = history[at - 1] if at else None
        if before is None or before.type in expected:
            return True
        if before.type == StateType.CANCELLING:
            before = Cancelled(message="Cancelled while it waited.")
        await self._client.set_flow_run_state(run_id, before.model_copy(update={"id": uuid4()}), force=True)
        return False

    # -- claiming -----------------------------------------------------------------------------

    async def claim(self, run_id: UUID) -> UUID | None:
        """The id of our claim. None if the run is not to be had. Raises Unreachable when the server
        does not say. One request only, because a free device waits for it: whether the claim
        covered somebody's decision is looked at while the job starts."""
        claim: State[None] = Pending(message=f"{self._mark}{hostname()}.")
        try:
            async with self._alone_with(run_id):
                answer = await self._client.set_flow_run_state(run_id, claim)
        except ObjectNotFound:
            return None
        except httpx.HTTPError as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        won = answer.status == SetStateStatus.ACCEPT and answer.state is not None
        if not won or answer.state is None or answer.state.type != StateType.PENDING:
            return None
        return answer.state.id

    def is_left_claimed(self, run: FlowRun) -> bool:
        """Whether a worker claimed the run and never launched it, given that we do not carry it.
        One of this machine was us. Of another machine's we are sure when it has been silent long."""
        state = run.state
        if (
            state is None
            or state.type != StateType.PENDING
            or not (state.message or "").startswith(self._mark)
        ):
            return False
        if state.message == f"{self._mark}{hostname()}.":
            return True
        return not run.infrastructure_pid and now() - state.timestamp > ABANDONED_AFTER

    async def unclaim(self, run_id: UUID, why: str) -> None:
        """Put a claimed run back in line, at its old place. Only from Pending: a run that went on
        to run, or that was cancelled, is left as it is."""

        async def put_back() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state_type != StateType.PENDING:
                return
            due = run.expected_start_time
            state: State[None] = Scheduled(name=WAITING, message=f"Waits again: {why}.", scheduled_time=due)
            await self._client.set_flow_run_state(run_id, state)

        await until_answered(put_back)

    # -- ending -------------------------------------------------------------------------------

    async def show_running(self, run_id: UUID) -> None:
        """For a job that does not speak to Prefect: it runs."""

        async def write() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state_type == StateType.PENDING:
                await self._client.set_flow_run_state(run_id, Running())

        await until_answered(write)

    async def finish(
        self, run_id: UUID, end: End, intent: Intent | None, speaks: bool, why: str = ""
    ) -> tuple[str, str]:
        """Read what became of the run, and write what its process could not say itself.
        `speaks` is whether the process reports to Prefect on its own, `why` what it was preempted for.
        The outcome and a word on it."""
        return await until_answered(lambda: self._finish(run_id, end, intent, speaks, why)) or (
            "lost",
            "the run was deleted",
        )

    async def _finish(
        self, run_id: UUID, end: End, intent: Intent | None, speaks: bool, why: str
    ) -> tuple[str, str]:
        run = await self._client.read_flow_run(run_id)
        state = run.state
        kind = state.type if state else StateType.PENDING
        stopped_by_us = intent is not None and kind == StateType.CRASHED  # it could not say what for
        if state and state.is_final() and not stopped_by_us:
            return kind.value.lower(), _first_line(state.message)
        completed = end.exit_code == 0 and not speaks
        # One that is lost may still run where nobody can see it, and must not be started again.
        if intent == "reschedule" and kind in _STOPPED and not (completed or end.lost):
            if await self._put_back(run, why):
                return REQUEUED, why
            return await self._finish(run_id, end, None, speaks, why)  # it was just cancelled
        if kind == StateType.SCHEDULED:
            return "rescheduled", _first_line(state.message if state else "")
        if kind == StateType.PAUSED:
            return "suspended", _first_line(state.message if state else "")
        final = _closing_state(kind, end, intent, speaks)
        await self._client.set_flow_run_state(run_id, final, force=True)
        return final.type.value.lower(), _first_line(final.message)

    async def _put_back(self, run: FlowRun, why: str) -> bool:
        """Let a run whose process has left wait again, at its old place, without costing it one of its
        retries. False if somebody cancelled it meanwhile."""
        if run.state and run.state.name == PREEMPTED:
            return True  # a worker before us did it
        policy = run.empirical_policy
        policy.retry_type = "reschedule"  # one that retries in its own process would never be seen again
        if run.run_count and run.state_type in (StateType.RUNNING, StateType.CRASHED):
            policy.resuming = True  # it goes on with the try that it was at
        # Without its process a waiting run is cancelled at once, not left Cancelling. The client's own
        # method cannot say "none".
        changes = {"infrastructure_pid": None, "empirical_policy": policy.model_dump(mode="json")}
        where = {"id": run.id}
        await self._client.request("PATCH", "/flow_runs/{id}", path_params=where, json=changes)
        back: State[None] = Scheduled(name=PREEMPTED, message=why, scheduled_time=run.expected_start_time)
        written = await self._client.set_flow_run_state(run.id, back)
        if written.status != SetStateStatus.ACCEPT or written.state is None:
            return False
        if run.state_type == StateType.CRASHED:  # leaving a final state, the server cleared the policy
            await self._client.update_flow_run(run.id, empirical_policy=policy)
        return await self.covered_nothing(run.id, written.state.id, expected=_STOPPED)

    async def close_abandoned(self, run_id: UUID) -> None:
        """A run that is being cancelled and that nobody carries: nothing is left to stop. One that
        another machine launched is left to that machine."""

        async def close() -> None:
            run = await self._client.read_flow_run(run_id)
            elsewhere = run.infrastructure_pid and run.infrastructure_pid.split(":")[0] != hostname()
            if run.state_type == StateType.CANCELLING and not elsewhere:
                done: State[None] = Cancelled(message="Cancelled; nothing of it was running.")
                await self._client.set_flow_run_state(run_id, done, force=True)

        await until_answered(close)

    async def fail(self, run_id: UUID, state: State[None]) -> None:
        async def write() -> None:
            await self._client.set_flow_run_state(run_id, state, force=True)

        await until_answered(write)

    async def set_infrastructure(self, run_id: UUID, identifier: str) -> None:
        async def write() -> None:
            await self._client.update_flow_run(run_id, infrastructure_pid=identifier)

        await until_answered(write)


# What a run may be found in whose process left because it was asked to.
_STOPPED = frozenset({StateType.PENDING, StateType.RUNNING, StateType.SCHEDULED, StateType.CRASHED})


def refused(reason: Reason) -> State[None]:
    state: State[None] = Failed(name="Refused", message=str(reason))
    return state


def could_not_launch(why: str) -> State[None]:
    state: State[None] = Crashed(message=f"The job could not be launched: {why}")
    return state


def _closing_state(kind: StateType, end: End, intent: Intent | None, speaks: bool) -> State[None]:
    """The final state of a run whose process is gone and said none."""
    if kind == StateType.CANCELLING or intent == "cancel":
        return Cancelled(message="Cancelled; its process has ended.")
    code = end.exit_code
    if end.lost or code is None or speaks or _signal(code) or (code and end.oom_killed):
        return Crashed(message=_explain_exit(end))
    if code == 0:
        return Completed(message="The command ended with exit code 0.")
    return Failed(message=f"The command ended with exit code {code}.")


def _explain_exit(end: End) -> str:
    code = end.exit_code
    if end.detail and (code is None or end.oom_killed):
        return end.detail
    if code is None:
        return "Its process ended while no worker was watching, without reporting a result."
    more = f" {end.detail}" if end.detail else ""
    if _signal(code):
        hint = " (out of memory, or killed by somebody)" if _signal(code) == 9 else ""
        return f"Its process was ended by signal {_signal(code)}{hint} before it reported a result.{more}"
    return f"Its process ended with exit code {code} before it reported a result; see its output.{more}"


def _signal(exit_code: int) -> int:
    """The signal that ended a process; 0 if none did. Of a container's, 128 is added to it."""
    return -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code < 128 + 65 else 0


def _first_line(message: str | None) -> str:
    return (message or "").strip().split("\n")[0][:500]


async def until_answered(call: Callable[[], Awaitable[T]], pause_s: float = 2.0) -> T | None:
    """Call until the server answers. None if what it is about was deleted meanwhile."""
    while True:
        try:
            return await call()
        except ObjectNotFound:
            return None
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500 and error.response.status_code not in (408, 429):
                raise
        except httpx.HTTPError:
            pass
        await asyncio.sleep(pause_s)


def hostname() -> str:
    return socket.gethostname()


def now() -> datetime:
    return datetime.now(UTC)

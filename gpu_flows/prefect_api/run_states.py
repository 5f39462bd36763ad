"""The states that the worker sets on flow runs: the reason for waiting, the claim, and the end.

A run stays Scheduled until its devices are assigned. Setting it to Pending is the claim; if two workers
try, the server accepts one. The server would, however, also accept a state that follows a cancellation
or a result. The claim, the waiting reason and the requeue therefore read the run's history afterwards,
and restore a decision that they have overwritten.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Container
from datetime import timedelta
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Pending, Running, Scheduled

from gpu_flows.common.clock import utc_now
from gpu_flows.dispatch.gateway import REQUEUED, Unreachable
from gpu_flows.prefect_api import final_states
from gpu_flows.prefect_api.server_retry import retry_until_answered
from gpu_flows.runtimes.base import End, Intent
from gpu_flows.schedulers.model import Reason

WAITING = "AwaitingGPU"
PREEMPTED = "Preempted"  # the name of the state for as long as a requeued run waits
ABANDONED_AFTER = timedelta(minutes=2)

# The states in which a run may be found after its process stopped on request.
_STOPPED = frozenset({StateType.PENDING, StateType.RUNNING, StateType.SCHEDULED, StateType.CRASHED})


class RunStates:
    def __init__(self, client: PrefectClient, pool: str) -> None:
        self._client = client
        # The message of a claimed run, up to the host name, until its process reports. A worker that finds
        # its own message on a run that it does not execute was killed between claim and launch.
        self._claim_prefix = f"Claimed by the gpu worker of pool {pool!r} on "
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    def _lock(self, run_id: UUID) -> asyncio.Lock:
        """Return the lock under which reasons and claims of a run are written one after the other."""
        return self._locks.setdefault(run_id, asyncio.Lock())

    # -- waiting ------------------------------------------------------------------------------

    async def show_reason(self, run_id: UUID, reason: Reason, still_waits: Callable[[UUID], bool]) -> None:
        """Show on a waiting run why it waits.

        The dispatcher may claim the run at any moment, and a reason written after the claim would undo
        it. So `still_waits` is called last, under the same lock as the claim.
        """
        run = await self._client.read_flow_run(run_id)
        due = run.next_scheduled_start_time or run.expected_start_time
        name, message = WAITING, str(reason)
        if run.state and run.state.name == PREEMPTED:
            name, message = PREEMPTED, f"{_first_line(run.state.message)}\n{reason}"
        waiting: State[None] = Scheduled(name=name, message=message, scheduled_time=due)
        async with self._lock(run_id):
            if run.state_type != StateType.SCHEDULED or not still_waits(run_id):
                return
            written = await self._client.set_flow_run_state(run_id, waiting)
        if written.status == SetStateStatus.ACCEPT and written.state:
            await self.restore_overwritten(run_id, written.state.id)

    async def restore_overwritten(
        self, run_id: UUID, state_id: UUID, expected: Container[StateType] = (StateType.SCHEDULED,)
    ) -> bool:
        """Restore the state before the given one, unless it has an expected type. Return whether it was
        restored."""

        async def restore() -> bool:
            history = sorted(await self._client.read_flow_run_states(run_id), key=lambda s: s.timestamp)
            position = next((i for i, state in enumerate(history) if state.id == state_id), 0)
            before = history[position - 1] if position else None
            if before is None or before.type in expected:
                return False
            if before.type == StateType.CANCELLING:
                before = Cancelled(message="Cancelled while it waited.")
            restored = before.model_copy(update={"id": uuid4()})
            await self._client.set_flow_run_state(run_id, restored, force=True)
            return True

        return bool(await retry_until_answered(restore))

    # -- claiming -----------------------------------------------------------------------------

    async def claim(self, run_id: UUID) -> UUID | None:
        """Claim the run. Return the id of the claiming state, or None if the server refuses the claim.
        Raises Unreachable if the server does not answer.

        This is a single request because free devices wait for it. Call `restore_overwritten` while the
        job starts.
        """
        claim: State[None] = Pending(message=f"{self._claim_prefix}{socket.gethostname()}.")
        try:
            async with self._lock(run_id):
                answer = await self._client.set_flow_run_state(run_id, claim)
        except ObjectNotFound:
            return None
        except httpx.HTTPError as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        if answer.status != SetStateStatus.ACCEPT or answer.state is None:
            return None
        return answer.state.id if answer.state.type == StateType.PENDING else None

    def is_abandoned_claim(self, run: FlowRun) -> bool:
        """Return whether a worker claimed the run and never launched it, given that this worker does not
        execute it. A claim from another machine counts as abandoned after `ABANDONED_AFTER`."""
        state = run.state
        if state is None or state.type != StateType.PENDING:
            return False
        message = state.message or ""
        if not message.startswith(self._claim_prefix):
            return False
        if message == f"{self._claim_prefix}{socket.gethostname()}.":
            return True
        return not run.infrastructure_pid and utc_now() - state.timestamp > ABANDONED_AFTER

    async def release_claim(self, run_id: UUID, why: str) -> None:
        """Return a claimed run to its old place in the queue. A run that is no longer Pending, because it
        started or was cancelled, stays as it is."""

        async def release() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state_type != StateType.PENDING:
                return
            waiting: State[None] = Scheduled(
                name=WAITING, message=f"Waits again: {why}.", scheduled_time=run.expected_start_time
            )
            await self._client.set_flow_run_state(run_id, waiting)

        await retry_until_answered(release)

    # -- running and ending -------------------------------------------------------------------

    async def set_infrastructure(self, run_id: UUID, identifier: str) -> None:
        """Record on the run as which process or container it runs."""

        async def write() -> None:
            await self._client.update_flow_run(run_id, infrastructure_pid=identifier)

        await retry_until_answered(write)

    async def set_running(self, run_id: UUID) -> None:
        """Set a claimed run to Running, for a job that does not report itself."""

        async def write() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state_type == StateType.PENDING:
                await self._client.set_flow_run_state(run_id, Running())

        await retry_until_answered(write)

    async def finish(
        self, run_id: UUID, end: End, intent: Intent | None, reports_itself: bool, why: str = ""
    ) -> tuple[str, str]:
        """Set the final state of a run whose process has ended, or requeue it. Return the outcome and a
        short explanation.

        A final state that the process has reported itself is kept. `reports_itself` is whether the
        process reports to Prefect at all, `why` is the reason for which it was preempted.
        """
        outcome = await retry_until_answered(lambda: self._finish(run_id, end, intent, reports_itself, why))
        return outcome or ("lost", "the run was deleted")

    async def _finish(
        self, run_id: UUID, end: End, intent: Intent | None, reports_itself: bool, why: str
    ) -> tuple[str, str]:
        run = await self._client.read_flow_run(run_id)
        state = run.state
        current, message = (state.type, state.message) if state else (StateType.PENDING, "")
        # A process that is stopped on request may report Crashed, because it does not know the reason.
        stopped_on_request = intent is not None and current == StateType.CRASHED
        if state and state.is_final() and not stopped_on_request:
            return current.value.lower(), _first_line(message)
        completed = end.exit_code == 0 and not reports_itself
        # A lost attempt may still run on a node that is out of reach, so it is never started again.
        if intent == "reschedule" and current in _STOPPED and not (completed or end.lost):
            if await self._requeue(run, why):
                return REQUEUED, why
            return await self._finish(run_id, end, None, reports_itself, why)  # it was just cancelled
        if current == StateType.SCHEDULED:
            return "rescheduled", _first_line(message)
        if current == StateType.PAUSED:
            return "suspended", _first_line(message)
        final = final_states.ended(current, end, intent, reports_itself)
        await self._client.set_flow_run_state(run_id, final, force=True)
        return final.type.value.lower(), _first_line(final.message)

    async def _requeue(self, run: FlowRun, why: str) -> bool:
        """Return a preempted run to its old place in the queue, without using up one of its retries.
        Return False if it was cancelled meanwhile."""
        if run.state and run.state.name == PREEMPTED:
            return True  # a previous worker has requeued it
        policy = run.empirical_policy
        policy.retry_type = "reschedule"  # Prefect's poll never returns a run that retries in its process
        if run.run_count and run.state_type in (StateType.RUNNING, StateType.CRASHED):
            policy.resuming = True  # the next attempt continues the same try
        # A waiting run without a process becomes Cancelled immediately instead of staying Cancelling.
        # The client's own method cannot set the process to none.
        changes = {"infrastructure_pid": None, "empirical_policy": policy.model_dump(mode="json")}
        await self._client.request("PATCH", "/flow_runs/{id}", path_params={"id": run.id}, json=changes)
        waiting: State[None] = Scheduled(name=PREEMPTED, message=why, scheduled_time=run.expected_start_time)
        written = await self._client.set_flow_run_state(run.id, waiting)
        if written.status != SetStateStatus.ACCEPT or written.state is None:
            return False
        if run.state_type == StateType.CRASHED:  # the server clears the policy after a final state
            await self._client.update_flow_run(run.id, empirical_policy=policy)
        return not await self.restore_overwritten(run.id, written.state.id, expected=_STOPPED)

    async def complete_cancellation(self, run_id: UUID) -> None:
        """Set a Cancelling run that this worker does not execute to Cancelled. A run that another machine
        launched is left to that machine."""

        async def complete() -> None:
            run = await self._client.read_flow_run(run_id)
            host = (run.infrastructure_pid or "").split(":")[0]
            if run.state_type == StateType.CANCELLING and host in ("", socket.gethostname()):
                cancelled: State[None] = Cancelled(message="Cancelled; nothing of it was running.")
                await self._client.set_flow_run_state(run_id, cancelled, force=True)

        await retry_until_answered(complete)

    async def force(self, run_id: UUID, state: State[None]) -> None:
        """Set the state even if the server's rules forbid the transition."""

        async def write() -> None:
            await self._client.set_flow_run_state(run_id, state, force=True)

        await retry_until_answered(write)


def _first_line(message: str | None) -> str:
    return (message or "").strip().split("\n")[0][:500]

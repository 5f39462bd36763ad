"""The states that the worker sets on flow runs: the reason for waiting, the claim, and the end.

A run stays Scheduled until its devices are assigned. Setting it to Pending is the claim; if two workers
try, the server accepts one. The server would, however, also accept a state that follows a cancellation
or a result. The claim, the waiting reason and the requeue therefore read the run's history afterwards,
and restore a decision that they have overwritten.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Container, Sequence
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Pending, Running, Scheduled

from gpu_flows.dispatch.gateway import REQUEUED, SUSPENDED, Unreachable
from gpu_flows.dispatch.lease import Lease, Unlimited
from gpu_flows.prefect_api import final_states
from gpu_flows.prefect_api.claims import Claim, find_claim, parse_claim
from gpu_flows.prefect_api.placement_text import without_placement
from gpu_flows.prefect_api.server_retry import retry_until_answered
from gpu_flows.runtimes.base import End, Intent
from gpu_flows.schedulers.model import Reason

WAITING = "AwaitingGPU"
PREEMPTED = "Preempted"  # the name of the state for as long as a requeued run waits
OUT_OF_MEMORY = "OutOfMemory"  # the same, for a run that waits for more memory
REQUEUED_NAMES = {PREEMPTED, OUT_OF_MEMORY}
LOST = "Lost"  # the name of the state of a run whose machine is dead

# The states in which a run may be found after its process stopped on request.
_STOPPED = frozenset({StateType.PENDING, StateType.RUNNING, StateType.SCHEDULED, StateType.CRASHED})


class RunStates:
    """`place` is where this worker launches processes, see `claims.place_of`."""

    def __init__(
        self,
        client: PrefectClient,
        lease: Lease | None = None,
        worker: Callable[[], str] = lambda: "",
        place: str = "",
    ) -> None:
        self._client, self._lease = client, lease or Unlimited()
        self._worker, self._place = worker, place
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
        if run.state and run.state.name in REQUEUED_NAMES:
            name, message = run.state.name, f"{_first_line(run.state.message)}\n{reason}"
        waiting: State[None] = Scheduled(name=name, message=message, scheduled_time=due)
        async with self._lock(run_id):
            if run.state_type != StateType.SCHEDULED or not still_waits(run_id):
                return
            written = await self._client.set_flow_run_state(run_id, waiting)
        if written.status == SetStateStatus.ACCEPT and written.state:
            await self.restore_overwritten(run_id, written.state.id)

    async def restore_overwritten(
        self, run_id: UUID, state_id: UUID, expected: Container[StateType | None] = (StateType.SCHEDULED,)
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

    async def claim(self, run_id: UUID, devices: Sequence[str] = (), where: str = "") -> UUID | None:
        """Claim the run. Return the id of the claiming state, or None if the server refuses the claim.
        `where` names the devices for people. Raises Unreachable if the server does not answer, or this
        worker does not lead any more.

        This is a single request because free devices wait for it. Call `restore_overwritten` while the
        job starts.
        """
        try:
            async with self._lock(run_id):
                if not self._lease.is_valid():
                    raise Unreachable("another worker may act for the pool now")
                claim = Claim(
                    self._lease.token, self._worker(), self._place, tuple(devices), id=uuid4().hex[:8]
                )
                pending: State[None] = Pending(message=f"Starting {where}.\n{claim}" if where else str(claim))
                answer = await self._client.set_flow_run_state(run_id, pending)
        except ObjectNotFound:
            return None
        except httpx.HTTPError as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        if answer.status != SetStateStatus.ACCEPT or answer.state is None:
            return None
        return answer.state.id if answer.state.type == StateType.PENDING else None

    async def read_claim(self, run: FlowRun) -> Claim | None:
        """Return the claim under which the run was launched, or will be; None if it has none."""
        if run.state_type == StateType.PENDING and run.state and (claim := parse_claim(run.state.message)):
            return claim
        return find_claim(await self._client.read_flow_run_states(run.id))

    def is_of_this_place(self, claim: Claim) -> bool:
        """Return whether this worker made the claim, or one before it in the same folder."""
        return claim.place == self._place

    def is_of_this_host(self, run: FlowRun) -> bool:
        """Return whether the run was launched by a worker of this machine, in whichever folder."""
        host, _, _ = self._place.partition(":")
        return (run.infrastructure_pid or "").partition(":")[0] == host

    async def release_claim(self, run_id: UUID, why: str, claim: Claim | None = None) -> None:
        """Return a claimed run to its old place in the queue. A run that is no longer Pending, because it
        started or was cancelled, stays as it is, and so does one with another claim than the given one. If
        none is given, it must be a claim of this place."""

        async def release() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state is None or run.state_type != StateType.PENDING:
                return
            found = parse_claim(run.state.message)
            if found and (found != claim if claim else not self.is_of_this_place(found)):
                return
            waiting: State[None] = Scheduled(
                name=WAITING, message=f"Waits again: {why}.", scheduled_time=run.expected_start_time
            )
            await self._client.set_flow_run_state(run_id, waiting)

        await retry_until_answered(release)

    async def take_back_launch(self, run_id: UUID, why: str) -> None:
        """Return a run that was claimed at this place, and perhaps reported as launched, to its old place in
        the queue. To be called if its command was not started."""

        async def take_back() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state_type in (StateType.PENDING, StateType.RUNNING):
                claim = await self.read_claim(run)
                if claim is None or self.is_of_this_place(claim):
                    await self._requeue(run, f"Waits again: {why}.", WAITING)

        await retry_until_answered(take_back)

    # -- running and ending -------------------------------------------------------------------

    async def set_infrastructure(self, run_id: UUID, identifier: str, tags: list[str] | None = None) -> None:
        """Record on the run as which process or container it runs, and set its tags."""
        changes: dict[str, Any] = {"infrastructure_pid": identifier}
        if tags is not None:
            changes["tags"] = tags

        async def write() -> None:
            await self._client.update_flow_run(run_id, **changes)

        await retry_until_answered(write)

    async def set_running(self, run_id: UUID, message: str = "") -> None:
        """Set a claimed run to Running, for a job that does not report itself."""

        async def write() -> None:
            run = await self._client.read_flow_run(run_id)
            if run.state_type == StateType.PENDING:
                await self._client.set_flow_run_state(run_id, Running(message=message))

        await retry_until_answered(write)

    async def finish(
        self,
        run_id: UUID,
        end: End,
        intent: Intent | None,
        reports_itself: bool,
        why: str = "",
        out_of_memory: bool = False,
    ) -> tuple[str, str]:
        """Set the final state of a run whose process has ended, or requeue it. Return the outcome and a
        short explanation.

        A final state that the process has reported itself is kept. `reports_itself` is whether the
        process reports to Prefect at all, `why` is the reason for which it was preempted. With
        `out_of_memory`, a run that failed waits again too, `why` says for what.
        """
        try:
            outcome = await retry_until_answered(
                lambda: self._finish(run_id, end, intent, reports_itself, why, out_of_memory)
            )
        except httpx.HTTPStatusError as error:  # the attempt has ended, whatever the server thinks of it
            final = final_states.ended(StateType.RUNNING, end, intent, reports_itself)
            return final.type.value.lower(), f"the server rejects the report of its end: {error}"
        return outcome or ("lost", "the run was deleted")

    async def _finish(
        self,
        run_id: UUID,
        end: End,
        intent: Intent | None,
        reports_itself: bool,
        why: str,
        out_of_memory: bool = False,
    ) -> tuple[str, str]:
        run = await self._client.read_flow_run(run_id)
        state = run.state
        current, message = (state.type, state.message) if state else (StateType.PENDING, "")
        # A process that is stopped on request may report Crashed, because it does not know the reason.
        stopped_on_request = intent is not None and current == StateType.CRASHED
        died_of_memory = out_of_memory and current in (StateType.FAILED, StateType.CRASHED)
        if state and state.is_final() and not (stopped_on_request or died_of_memory):
            return current.value.lower(), _first_line(message)
        completed = end.exit_code == 0 and not reports_itself
        # A lost attempt may still run on a node that is out of reach, so it is never started again.
        waits_again = (intent == "reschedule" or out_of_memory) and current in _STOPPED
        if (waits_again or died_of_memory) and not (completed or end.lost):
            if await self._requeue(run, why, OUT_OF_MEMORY if out_of_memory else PREEMPTED):
                return REQUEUED, why
            return await self._finish(run_id, end, None, reports_itself, why)  # it was just cancelled
        if current == StateType.SCHEDULED and (reports_itself or run.state_name in REQUEUED_NAMES):
            return "rescheduled", _first_line(message)  # by the process, or by an earlier worker
        stopped_or_left = intent == "reschedule" or (reports_itself and intent is None)
        if is_suspended(run) and stopped_or_left and not (completed or end.lost):
            await self._change(run_id, infrastructure_pid=None, tags=without_placement(run.tags))
            return SUSPENDED, _first_line(message) or "Suspended."
        final = final_states.ended(current, end, intent, reports_itself)
        await self._client.set_flow_run_state(run_id, final, force=True)
        return final.type.value.lower(), _first_line(final.message)

    async def _requeue(self, run: FlowRun, why: str, name: str = PREEMPTED) -> bool:
        """Return a stopped run to its old place in the queue, without using up one of its retries.
        Return False if it was cancelled meanwhile."""
        if run.state and run.state.name in REQUEUED_NAMES:
            return True  # a previous worker has requeued it
        policy = run.empirical_policy
        policy.retry_type = "reschedule"  # Prefect's poll never returns a run that retries in its process
        ended = (StateType.CRASHED, StateType.FAILED)  # the server clears the policy after a final state
        if run.run_count and run.state_type in (StateType.RUNNING, *ended):
            policy.resuming = True  # the next attempt continues the same try
        # A waiting run without a process becomes Cancelled immediately instead of staying Cancelling.
        await self._change(
            run.id,
            infrastructure_pid=None,
            empirical_policy=policy.model_dump(mode="json"),
            tags=without_placement(run.tags),
        )
        waiting: State[None] = Scheduled(name=name, message=why, scheduled_time=run.expected_start_time)
        written = await self._client.set_flow_run_state(run.id, waiting)
        if written.status != SetStateStatus.ACCEPT or written.state is None:
            return False
        if run.state_type in ended:
            await self._client.update_flow_run(run.id, empirical_policy=policy)
        expected = {*_STOPPED, run.state_type}
        return not await self.restore_overwritten(run.id, written.state.id, expected)

    async def _change(self, run_id: UUID, **fields: Any) -> None:
        """Change fields of a run. The client's own method cannot set the process to none."""
        await self._client.request("PATCH", "/flow_runs/{id}", path_params={"id": run_id}, json=fields)

    async def complete_cancellation(self, run_id: UUID) -> None:
        """Set a Cancelling run that this worker does not execute to Cancelled. A run that another machine
        launched is left to that machine."""

        async def complete() -> None:
            run = await self._client.read_flow_run(run_id)
            claim = await self.read_claim(run)
            if claim:
                is_here = self.is_of_this_place(claim)
            else:
                is_here = (run.infrastructure_pid or "").split(":")[0] in ("", socket.gethostname())
            if run.state_type == StateType.CANCELLING and is_here:
                cancelled: State[None] = Cancelled(message="Cancelled; nothing of it was running.")
                await self._client.set_flow_run_state(run_id, cancelled, force=True)

        await retry_until_answered(complete)

    async def report_lost(self, run_id: UUID, why: str) -> str:
        """Report that the machine of the run is dead. Return the outcome; empty if the run has ended or waits
        again."""

        async def report() -> str:
            run = await self._client.read_flow_run(run_id)
            if run.state_type not in (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING):
                return ""
            is_cancelled = run.state_type == StateType.CANCELLING
            final: State[None] = Cancelled(message=why) if is_cancelled else Crashed(name=LOST, message=why)
            await self._client.set_flow_run_state(run_id, final, force=True)
            return final.type.value.lower()

        return await retry_until_answered(report) or ""

    async def force(self, run_id: UUID, state: State[None]) -> None:
        """Set the state even if the server's rules forbid the transition."""

        async def write() -> None:
            await self._client.set_flow_run_state(run_id, state, force=True)

        await retry_until_answered(write)


def is_suspended(run: FlowRun) -> bool:
    """Return whether the run is to stop and free its devices until someone resumes it. A run that is only
    paused waits in its process."""
    state = run.state
    return bool(state and state.type == StateType.PAUSED and state.state_details.pause_reschedule)


def _first_line(message: str | None) -> str:
    return (message or "").strip().split("\n")[0][:500]

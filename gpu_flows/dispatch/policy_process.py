"""A policy of another package, planning in a process of its own.

The worker's engine has a `RemotePolicy` in its place. It sends what changed to the process and makes the
moves that come back on its own draft, where each is checked. A policy that exits, crashes, takes too long or
too much memory loses its process; the engine then lets FIFO decide, as for any error of a policy.

An answer usually arrives within milliseconds, and `plan` waits for it that long. After that the event loop
goes on, nothing is planned, and the pool plans again when the answer arrives. If the state has changed
meanwhile so that the answer does not fit any more, it is dropped and the process is asked again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import ConfigDict

from gpu_flows.dispatch.child_process import ChildProcess
from gpu_flows.dispatch.policy_child import ORDER_SHOWN
from gpu_flows.schedulers.mirror import Changes, Original
from gpu_flows.schedulers.model import Job, Offer, Progress, Tier
from gpu_flows.schedulers.plan_draft import InvalidMove
from gpu_flows.schedulers.policy import (
    Options,
    Policy,
    PolicyError,
    PolicyFailed,
    State,
    is_built_in,
    make_policy,
)

START_WITHIN_S = 30.0
PLAN_WITHIN_S = 5.0
WAIT_S = 0.05  # for which the event loop waits for an answer
MOST_DROPPED = 10


async def open_policy(
    name: str, options: dict[str, Any], plan_again: Callable[[], None], within_s: float = START_WITHIN_S
) -> Policy:
    """Return the policy of that name: a built-in one itself, any other in a process of its own. Raises
    PolicyError. `plan_again` is called when the process has answered late."""
    if is_built_in(name):
        return make_policy(name, options)
    process = PolicyProcess(name, options)
    try:
        about = await asyncio.to_thread(process.receive, within_s)
    except PolicyFailed as error:
        process.close()
        raise PolicyError(f"Policy {name!r} cannot be started: {error}") from None
    except BaseException:
        process.close()
        raise
    if about is None or "refused" in about:
        process.close()
        raise PolicyError(
            about["refused"] if about else f"Policy {name!r} takes over {within_s:g} s to load."
        )
    return RemotePolicy.of(name, about, process, plan_again)


class PolicyProcess(ChildProcess):
    """The process of one policy."""

    failure = PolicyFailed

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__("gpu_flows.dispatch.policy_child", name, json.dumps(options))


class RemoteOptions(Options):
    """The options in force of a policy whose model only its own process imports."""

    model_config = ConfigDict(extra="allow")


_ATTRIBUTES = ("preempts", "moves_running", "uses_utilization", "shares_devices")


class RemotePolicy(Policy[RemoteOptions]):
    """Stands in the worker's engine for a policy that plans in another process."""

    name: ClassVar[str] = "remote"

    @classmethod
    def of(
        cls,
        name: str,
        about: dict[str, Any],
        process: PolicyProcess,
        plan_again: Callable[[], None],
    ) -> RemotePolicy:
        """Return the stand-in for the policy that the process describes."""
        attributes = {key: about[key] for key in _ATTRIBUTES}
        policy: RemotePolicy = type(cls.__name__, (cls,), {"name": name, **attributes})(**about["options"])
        policy._process, policy._plan_again = process, plan_again
        return policy

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._process: PolicyProcess
        self._plan_again: Callable[[], None]
        self._original = Original()
        self._places: dict[str, int] = {}  # of the first jobs in the policy's order
        self._asked_at: float | None = None  # set while an answer is awaited
        self._outdated = False  # the state changed after the process was asked
        self._dropped = 0  # late answers in a row that did not fit
        self._timer: asyncio.TimerHandle | None = None  # set while the process is watched for an answer

    def rank(self, job: Job, progress: Progress) -> int:
        """Return the job's place in the order of the last plan. It is only shown."""
        return self._places.get(job.id, ORDER_SHOWN)

    def plan(self, state: State) -> None:
        try:
            self._plan(state)
        except Exception:
            self.close()
            raise

    def _plan(self, state: State) -> None:
        is_outdated = True
        if self._asked_at is not None:
            answer = self._process.receive(0)
            if answer is None:
                self._wait_longer()
                return
            self._stop_watching()
            is_outdated = not self._use_late_answer(answer, state) or self._outdated
        changes = self._original.changes(state)
        if is_outdated or changes:
            self._ask(changes, state)

    def _ask(self, changes: Changes, state: State) -> None:
        self._process.send(changes)
        loop = _running_loop()
        answer = self._process.receive(WAIT_S if loop else PLAN_WITHIN_S)
        if answer is not None:
            self._carry_out(answer, state)
        elif loop is None:
            raise _too_late()
        else:
            self._asked_at, self._outdated = time.monotonic(), False
            self._watch(loop)

    def _wait_longer(self) -> None:
        """Leave this plan empty. The next one, when the answer has arrived, sees all changes."""
        assert self._asked_at is not None
        if time.monotonic() - self._asked_at >= PLAN_WITHIN_S:
            raise _too_late()
        self._outdated = True
        if not self._timer:  # only a part of the answer has arrived
            self._watch(asyncio.get_running_loop())

    def _use_late_answer(self, answer: dict[str, Any], state: State) -> bool:
        """Make the moves of a late answer, and return whether they still fit the state."""
        self._asked_at, checkpoint = None, state.draft.checkpoint()
        try:
            self._carry_out(answer, state)
        except InvalidMove:
            self._dropped += 1
            if self._dropped > MOST_DROPPED:
                raise
            state.draft.rollback(checkpoint)
            return False
        self._dropped = 0
        return True

    def _carry_out(self, answer: dict[str, Any], state: State) -> None:
        if answer["error"]:
            raise PolicyFailed(answer["error"])
        offers = self._read_offers(answer, state)
        moved = [*answer["preempts"], *(job_id for job_id, _ in answer["starts"])]
        self._original.expect_again(moved)
        for job_id in answer["preempts"]:
            state.draft.preempt(job_id)
        devices = state.cluster.devices
        for job_id, device_ids in answer["starts"]:
            job = state.queue.get(job_id)
            if job is None or not devices.keys() >= set(device_ids):
                raise InvalidMove(f"job {job_id} is not waiting, or its devices are gone")
            state.draft.start(job, tuple(devices[device_id].device for device_id in device_ids))
        if answer["wake_at"] is not None and answer["wake_at"] > state.now:
            state.draft.wake_at(answer["wake_at"])
        for offer in offers:
            state.draft.note(offer)
        self._show_order(answer["order"], state)

    def _read_offers(self, answer: dict[str, Any], state: State) -> list[Offer]:
        """Return the offers to jobs that the worker still has, before the moves of the answer are made."""
        offers = []
        for job_id, tier, accepted, *figures in answer["offers"]:
            running = state.running.get(job_id)  # a job that the answer moves
            job = running.job if running else state.queue.get(job_id)
            if job:
                offers.append(Offer(job, Tier(tier), bool(accepted), *map(float, figures)))
        return offers

    def _show_order(self, order: list[str], state: State) -> None:
        before, self._places = self._places, {job_id: place for place, job_id in enumerate(order)}
        for job_id in before.keys() | self._places.keys():
            if self._places.get(job_id) != before.get(job_id) and job_id in state.queue:
                state.draft.rerank(job_id)

    def _on_answer(self) -> None:
        """Plan again: the answer has arrived, the process has ended, or the time is up."""
        self._stop_watching()
        self._plan_again()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._process.fileno(), self._on_answer)
        left_s = PLAN_WITHIN_S - (time.monotonic() - self._asked_at) if self._asked_at else PLAN_WITHIN_S
        self._timer = loop.call_later(left_s, self._on_answer)

    def _stop_watching(self) -> None:
        if self._timer:
            asyncio.get_running_loop().remove_reader(self._process.fileno())
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End the process."""
        self._stop_watching()
        self._process.close()


def _too_late() -> PolicyFailed:
    return PolicyFailed(f"it did not plan within {PLAN_WITHIN_S:g} s")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

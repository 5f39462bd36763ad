"""The final state of a run that did not report one itself, derived from the end of its process."""

from __future__ import annotations

from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled, Completed, Crashed, Failed

from gpu_flows.checkpoints import contract
from gpu_flows.runtimes.base import End, Intent
from gpu_flows.schedulers.model import Reason


def refused(reason: Reason) -> State[None]:
    """Return the state of a run that can never start."""
    state: State[None] = Failed(name="Refused", message=str(reason))
    return state


def launch_failed(why: str) -> State[None]:
    """Return the state of a run whose process or container could not be started."""
    state: State[None] = Crashed(message=f"The job could not be launched: {why}")
    return state


def ended(current: StateType, end: End, intent: Intent | None, reports_itself: bool) -> State[None]:
    """Return the state of a run whose process ended without reporting a final state.

    A process that reports itself and did not must have crashed, whatever its exit code is; but for one that
    left it to the worker because it ran out of GPU memory.
    """
    if current == StateType.CANCELLING or intent == "cancel":
        return Cancelled(message="Cancelled; its process has ended.")
    code = end.exit_code
    if code == contract.OUT_OF_MEMORY and end.detail and not end.lost:
        return Failed(message=end.detail)
    if end.lost or code is None or reports_itself or _signal(code) or (code and end.oom_killed):
        return Crashed(message=_explain_crash(end))
    if code == 0:
        return Completed(message="The command ended with exit code 0.")
    return Failed(message=f"The command ended with exit code {code}. {end.detail}".rstrip())


def _explain_crash(end: End) -> str:
    code = end.exit_code
    if end.detail and (code is None or end.oom_killed):
        return end.detail
    if code is None:
        return "Its process ended while no worker was watching, without reporting a result."
    detail = f" {end.detail}" if end.detail else ""
    if _signal(code):
        hint = " (out of memory, or killed by a user)" if _signal(code) == 9 else ""
        return f"Its process was ended by signal {_signal(code)}{hint} before it reported a result.{detail}"
    where = "`gpu-flows logs RUN` prints its output."
    return f"Its process ended with exit code {code} before it reported a result. {where}{detail}"


def _signal(exit_code: int) -> int:
    """Return the signal that ended a process, or 0. Docker and shells report 128 plus the signal."""
    return -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code < 128 + 65 else 0

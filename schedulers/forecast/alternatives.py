"""What would let a waiting job start earlier: each change is tried on the state of the pool.

The pool is simulated forward with the median durations, once as it is and once with each change, until the
job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_flows.schedulers.forecast.forward import begin, medians, run_until
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.simulation.simulator import Run

NOTICEABLE, NOTICEABLE_S = 0.05, 1.0  # a gain, as a part of the wait that remains, and at least
POLICIES = ("fifo", "sjf", "srtf", "fair_share")  # that are tried in place of the pool's own


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds devices until the waiting job gets them."""

    job_id: str
    name: str
    until: float
    is_stopped: bool = False  # the policy stops it for the waiting job


@dataclass(frozen=True, slots=True)
class Outlook:
    """When a waiting job starts, by median durations, and where."""

    start: float
    devices: tuple[str, ...]
    waits_for: tuple[Holder, ...] = ()  # the jobs that hold these devices before it


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change with which the job would start earlier."""

    kind: str  # gpus, span_nodes, models, nodes, priority or policy
    value: str
    label: str
    start: float


def look_ahead(state: PoolState, job_id: str) -> Outlook | None:
    """Return when the job starts if nothing else comes; None if it does not. Raises UnknownDurations and
    PolicyError."""
    return look_ahead_together(state, [job_id]).get(job_id)


def look_ahead_together(
    state: PoolState, job_ids: Iterable[str], is_late: Callable[[], bool] = lambda: False
) -> dict[str, Outlook]:
    """Return the same of each of these jobs, by one simulation; those that do not start before it `is_late`
    are left out. Raises UnknownDurations and PolicyError."""
    wanted = list(job_ids)
    waited_for = wanted[:]

    def have_started(run: Run) -> bool:
        while waited_for and _has_started(run, waited_for[-1]):
            waited_for.pop()
        return not waited_for or is_late()

    run = begin(state, medians(state))
    run_until(run, have_started)
    return {job_id: _look_at(state, run, job_id) for job_id in wanted if _has_started(run, job_id)}


def _look_at(state: PoolState, run: Run, job_id: str) -> Outlook:
    result = run.result(job_id)
    assert result.started is not None
    devices = tuple(device.id for device in result.devices)
    return Outlook(result.started, devices, tuple(_find_holders(state, run, job_id, result.started)))


def find_places(state: PoolState) -> dict[str, int]:
    """Return the place of each waiting job in the policy's order, from 1. Raises PolicyError."""
    run = begin(state, dict.fromkeys(state.jobs(), 0.0))
    return {job.id: place for place, job in enumerate(run.engine.first_waiting(), 1)}


def find_alternatives(
    state: PoolState,
    job_id: str,
    start: float | None,
    policies: Sequence[str] = POLICIES,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Alternative]:
    """Return the changes with which the job would start noticeably before `start`, the earliest first. When
    `is_late`, those tried so far are returned. Raises UnknownDurations and PolicyError."""
    found = []
    before = None if start is None else start - max(NOTICEABLE_S, NOTICEABLE * (start - state.now))
    for kind, value, label, changed in _changes(state, job_id, policies):
        if is_late():
            break
        run = begin(changed, medians(changed))
        run_until(run, lambda run: _has_started(run, job_id) or is_late())
        started = run.result(job_id).started
        if started is not None and (before is None or started <= before):
            found.append(Alternative(kind, value, label, started))
    return sorted(found, key=lambda each: each.start)


def _has_started(run: Run, job_id: str) -> bool:
    return run.result(job_id).started is not None


def _find_holders(state: PoolState, run: Run, job_id: str, start: float) -> Iterator[Holder]:
    """Return the jobs that held the job's devices last before it started."""
    devices = {device.id for device in run.result(job_id).devices}
    jobs = state.jobs()
    last: dict[str, tuple[float, str, bool]] = {}
    for attempt in run.simulation.attempts:
        if attempt.job_id != job_id and attempt.ended <= start:
            is_stopped = attempt.outcome == "preempted" and attempt.ended == start
            for device in attempt.devices:
                if device.id in devices:
                    before = last.get(device.id, (0.0, "", False))
                    last[device.id] = max(before, (attempt.ended, attempt.job_id, is_stopped))
    for until, holder, is_stopped in sorted(set(last.values()), reverse=True):
        yield Holder(holder, jobs[holder].name or holder, until, is_stopped)


def _changes(
    state: PoolState, job_id: str, policies: Sequence[str]
) -> Iterator[tuple[str, str, str, PoolState]]:
    job = next(job for job, _ in state.waiting if job.id == job_id)
    for gpus in _fewer(job):
        label = f"on {gpus} GPU{'s' if gpus > 1 else ''} instead of {job.gpus}"
        yield "gpus", str(gpus), label, state.with_request(*_resized(state, job, gpus))
    if job.gpus > 1 and not job.may_span_nodes and not job.one_node:
        yield "span_nodes", "true", "on several nodes", state.with_request(replace(job, may_span_nodes=True))
    if job.models:
        yield "models", "", "on any GPU model", state.with_request(replace(job, models=()))
    if job.nodes:
        yield "nodes", "", "on any node", state.with_request(replace(job, nodes=()))
    if state.make_policy().uses_priority:
        for more in (1, 10):
            changed = replace(job, priority=job.priority + more)
            yield "priority", str(changed.priority), f"with priority + {more}", state.with_request(changed)
    for policy in policies:
        if policy != state.policy:
            yield "policy", policy, f"under {policy}", state.under(policy)


def _fewer(job: Job) -> list[int]:
    """Return the smaller numbers of GPUs to try: one less, and half as many again and again."""
    if job.min_gpus or job.gpus < 2:
        return []
    halves: list[int] = []
    while (half := (halves[-1] if halves else job.gpus) // 2) >= 1:
        halves.append(half)
    return sorted({job.gpus - 1, *halves}, reverse=True)


def _resized(state: PoolState, job: Job, gpus: int) -> tuple[Job, Estimate | None]:
    """Return the job on fewer GPUs, on which what is left of it takes longer in proportion."""
    factor, known, done = job.gpus / gpus, state.duration(job.id), state.work()[job.id]
    changed = replace(job, gpus=gpus)
    if known is None:
        return changed, None
    value, upper = (each + (factor - 1) * max(0.0, each - done) for each in (known.value, known.upper))
    longer = Estimate(value, upper, known.how)
    return changed.expecting(longer.value) if job.expected_s else changed, longer

"""The events that a pool sends to Prefect, so that automations and people can follow its decisions.

What the pool records as facts comes in, and those facts that somebody may want to react to go out as events.
An event is sent by a thread of Prefect's, so a server that is slow or away holds nothing up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from prefect.client.schemas.objects import WorkPool
from prefect.events import emit_event

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptInterrupted,
    AttemptStarted,
    Decided,
    DeviceEvent,
    Fact,
    JobEnded,
    JobSubmitted,
    Swapped,
)
from gpu_flows.devices.idle_watch import DeviceUse
from gpu_flows.dispatch.dispatcher import DECIDES_AGAIN
from gpu_flows.schedulers.model import Job

NEWS_S = 60.0  # facts older than this are repeated by a restarted worker, or were found too late to react to
MOST_REMEMBERED = 10_000  # jobs whose names are known
MOST_CHARACTERS = 1000  # of a text in an event; Prefect refuses events that are too large
MOST_RELATED = 100  # resources of an event; Prefect drops events with more


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One event: what happened, to the pool or to one of its devices, and which runs it concerns."""

    name: str
    at: float
    payload: dict[str, Any]
    device: str = ""  # empty: the pool
    jobs: tuple[str, ...] = ()


@dataclass(slots=True)
class KnownJobs:
    """How jobs are called, by their ids: those that this worker has received, and those that it executes,
    which an earlier worker may have received."""

    find_executing: Callable[[str], Job | None]
    names: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, job: JobSubmitted) -> None:
        if len(self.names) >= MOST_REMEMBERED:
            del self.names[next(iter(self.names))]
        self.names[job.job_id] = {"job": _clip(job.name), "user": job.user_name, "gpus": job.gpus}

    def describe(self, job_id: str) -> dict[str, Any]:
        if job_id in self.names:
            return self.names[job_id]
        job = self.find_executing(job_id)
        return {"job": job.name, "user": job.user, "gpus": job.gpus} if job else {"job": job_id}

    def name(self, job_id: str) -> str:
        return str(self.describe(job_id)["job"])


class PoolEvents:
    """Sends the events of one pool. `find_executing` returns a job that has an execution."""

    def __init__(
        self,
        pool: WorkPool,
        find_executing: Callable[[str], Job | None],
        emit: Callable[..., object] = emit_event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pool, self._emit, self._clock = pool.name, emit, clock
        self._resource = _name(f"gpu-flows.pool.{pool.name}", pool.name)
        self._work_pool = _relate("work-pool", f"prefect.work-pool.{pool.id}", pool.name)
        self._jobs = KnownJobs(find_executing)

    def add(self, facts: Iterable[Fact]) -> None:
        """Send the events of facts that were recorded together."""
        facts = list(facts)
        for fact in facts:
            if isinstance(fact, JobSubmitted):
                self._jobs.add(fact)
        for event in describe_facts(facts, self._jobs):
            self._send(event)

    def add_use(self, changes: Iterable[DeviceUse]) -> None:
        """Send the events of devices that became idle or busy in the hands of their jobs."""
        for change in changes:
            self._send(describe_use(change, self._jobs))

    def _send(self, event: PoolEvent) -> None:
        if self._clock() - event.at > NEWS_S:
            return
        related = [self._work_pool]
        related += [_relate("flow-run", f"prefect.flow-run.{id}", self._jobs.name(id)) for id in event.jobs]
        resource = self._resource
        if event.device:
            related.insert(0, {**resource, "prefect.resource.role": "gpu-pool"})
            resource = _name(f"gpu-flows.device.{event.device}", event.device)
        self._emit(
            event.name,
            resource=resource,
            related=related[:MOST_RELATED],
            payload=_clip({"pool": self._pool, **event.payload}),
            occurred=datetime.fromtimestamp(event.at, UTC),
            # The server stores an event once, also if a restarted worker sends it again.
            id=uuid5(NAMESPACE_OID, f"{self._pool} {event.name} {event.at} {event.device} {event.jobs}"),
        )


def describe_facts(facts: list[Fact], jobs: KnownJobs) -> Iterator[PoolEvent]:
    """Yield the events of facts that were recorded together."""
    for fact in facts:
        match fact:
            case AttemptStarted():
                yield _describe_placement(fact, facts, jobs)
            case AttemptInterrupted():
                yield _describe_interruption(fact, jobs)
            case JobEnded(job_id, ended, "refused", why):
                payload = {**jobs.describe(job_id), "why": why}
                yield PoolEvent("gpu-flows.job.refused", ended, payload, jobs=(job_id,))
            case Swapped():
                yield _describe_swap(fact)
            case Decided(error=error) if error:
                name = "gpu-flows.policy.recovered" if error == DECIDES_AGAIN else "gpu-flows.policy.failed"
                yield PoolEvent(name, fact.time, {"policy": fact.policy, "error": error})
            case DeviceEvent(at, device, node, kind, detail):
                payload = {"device": device, "node": node, "detail": detail}
                yield PoolEvent(f"gpu-flows.device.{kind}", at, payload, device)


def describe_use(change: DeviceUse, jobs: KnownJobs) -> PoolEvent:
    """Return the event of a device that became idle, or busy again, while jobs hold it."""
    payload = {
        "device": change.device,
        "node": change.node,
        "jobs": ", ".join(jobs.name(id) for id in change.jobs),
        "utilization": change.utilization,
        "minutes": round(change.idle_s / 60, 1),
    }
    return PoolEvent(f"gpu-flows.device.{change.kind}", change.at, payload, change.device, change.jobs)


def _describe_placement(start: AttemptStarted, facts: list[Fact], jobs: KnownJobs) -> PoolEvent:
    key = start.job_id, start.attempt
    held = [f.device_id for f in facts if isinstance(f, Allocated) and (f.job_id, f.attempt) == key]
    payload = {
        **jobs.describe(start.job_id),
        "attempt": start.attempt,
        "policy": start.policy,
        "runtime": start.runtime,
        "nodes": json.loads(start.nodes),
        "devices": held,
    }
    return PoolEvent("gpu-flows.job.placed", start.started, payload, jobs=(start.job_id,))


def _describe_interruption(stop: AttemptInterrupted, jobs: KnownJobs) -> PoolEvent:
    """Return that a job was preempted, moved or resized. The run that got its devices is related as well."""
    winners = tuple(id for id in json.loads(stop.freed_for) if id != stop.job_id)
    payload = {
        **jobs.describe(stop.job_id),
        "attempt": stop.attempt,
        "policy": stop.policy,
        "stopped_in_s": round(stop.released - stop.requested, 1),
        "freed_for": [jobs.name(id) for id in winners],
    }
    return PoolEvent(f"gpu-flows.job.{stop.kind}", stop.released, payload, jobs=(stop.job_id, *winners))


def _describe_swap(swap: Swapped) -> PoolEvent:
    payload = {
        "from": swap.from_policy,
        "to": swap.to_policy,
        "options": json.loads(swap.options),
        "error": swap.error,
    }
    return PoolEvent(f"gpu-flows.policy.{'refused' if swap.error else 'swapped'}", swap.time, payload)


def _name(id: str, name: str) -> dict[str, str]:
    return {"prefect.resource.id": id, "prefect.resource.name": _clip(name)}


def _relate(role: str, id: str, name: str) -> dict[str, str]:
    return {**_name(id, name), "prefect.resource.role": role}


def _clip(value: Any) -> Any:
    """Return the same value with every text in it cut."""
    match value:
        case str():
            return value[:MOST_CHARACTERS]
        case list():
            return [_clip(each) for each in value]
        case dict():
            return {key: _clip(each) for key, each in value.items()}
    return value

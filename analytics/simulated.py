"""Simulations in the warehouse: the facts of a run that never was, as a live pool would have told them.

So every view and every named question works on them. A run under one policy is a pool of its own
(`sim:srtf@4f1c2a`), and runs of one workload on one cluster are an experiment, within which
`gpu-flows sql experiments` compares them. The names end in digests, of the outcome and of the
question: the same run a second time is the same facts, and changes nothing.

A simulation's clock begins with the epoch, so `epoch(submitted)` is the second of the trace. What a
simulation does not have is not made up: there are no samples, so SQL's `utilization` is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptStarted,
    DeviceSeen,
    ExperimentRan,
    Fact,
    JobEnded,
    JobSubmitted,
)
from gpu_flows.analytics.spool import Spool
from gpu_flows.analytics.warehouse import Warehouse
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.simulation.simulator import Attempt, JobResult, Simulation
from gpu_flows.schedulers.workload import Arrival

RUNTIME = "simulated"
FACTS_AT_ONCE = 1_000
PATIENCE_S = 5.0  # how long to wait for somebody who has the warehouse open


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is simulated, under whatever policies."""

    name: str
    description: str  # JSON object

    @classmethod
    def of(cls, title: str, description: Mapping[str, object], arrivals: Iterable[Arrival]) -> Experiment:
        told = json.dumps(description, sort_keys=True, default=str)
        return cls(f"{title}@{_digest(told, *map(_question, arrivals))}", told)


def write(database: Path, experiment: Experiment, simulations: Mapping[str, Simulation], now: float) -> None:
    """Put simulations, by the names of their policies, into a warehouse, new or not."""
    with TemporaryDirectory() as folder:
        for policy, simulation in simulations.items():
            spool(Path(folder), facts(simulation, policy, experiment, now))
        load(database, Path(folder))


def spool(folder: Path, told: Iterable[Fact]) -> None:
    """Leave facts in a folder, from where `load` takes them. Several processes may do so at once."""
    opened, rest = Spool(folder), iter(told)
    while some := list(islice(rest, FACTS_AT_ONCE)):
        opened.append(some)
    opened.close()


def load(database: Path, folder: Path) -> None:
    """Bring what is in the folder, if anything, into a warehouse with schema and views up to date.
    Raises WarehouseError."""
    warehouse, spooled = Warehouse(database), Spool(folder)
    try:
        warehouse.load(lambda: [], PATIENCE_S)
        while spooled.ready():
            warehouse.load(lambda: spooled.ready()[:1], PATIENCE_S)
    finally:
        warehouse.close()


def facts(simulation: Simulation, policy: str, experiment: Experiment, now: float) -> Iterator[Fact]:
    """All that a live pool would have noted. `now` is when the experiment was made, by a real clock."""
    called = policy.replace(",", "+")  # a comma would be in the way wherever a pool is named in a list
    pool = f"sim:{called}@{_digest(*map(_answer, simulation.jobs))}"
    yield ExperimentRan(experiment.name, now, experiment.description)
    ran = [job.arrival.job.submitted for job in simulation.jobs if job.ended is not None]
    opened = min(ran, default=0.0)
    for device in all_devices(simulation.nodes):
        yield DeviceSeen(
            f"{pool}/{device.id}", pool, device.node, device.index, device.model, device.memory_mb, opened
        )
    for result in simulation.jobs:
        yield from _of_job(result, pool, experiment.name)
    decider = f"{policy} (failed)" if simulation.policy_error else policy
    memory = {result.arrival.job.id: result.arrival.job.memory_mb for result in simulation.jobs}
    for attempt in simulation.attempts:
        yield from _of_attempt(attempt, pool, decider, memory[attempt.job_id])


def _of_job(result: JobResult, pool: str, experiment: str) -> Iterator[Fact]:
    job = result.arrival.job
    job_id = f"{pool}/{job.id}"
    yield JobSubmitted(
        job_id=job_id,
        pool=pool,
        name=job.name or job.id,
        flow=job.kind,
        deployment="",
        user_name=job.user,
        tags="[]",
        gpus=job.gpus,
        gpu_memory_mb=job.memory_mb,
        priority=job.priority,
        deadline=job.deadline,
        expected_s=job.expected_s,
        submitted=job.submitted,
        experiment=experiment,
    )
    if result.ended is not None:
        yield JobEnded(job_id, result.ended, "completed")
    elif result.reason and result.reason.code == "impossible":
        yield JobEnded(job_id, job.submitted, "refused", str(result.reason))


def _of_attempt(attempt: Attempt, pool: str, policy: str, memory_mb: int) -> Iterator[Fact]:
    job_id, number, started = f"{pool}/{attempt.job_id}", attempt.number, attempt.started
    nodes = json.dumps(list(dict.fromkeys(device.node for device in attempt.devices)))
    yield AttemptStarted(job_id, number, policy, RUNTIME, nodes, started, started)
    for device in attempt.devices:
        promised = memory_mb or device.memory_mb
        yield Allocated(job_id, number, f"{pool}/{device.id}", device.node, promised, started)
    exit_code = 0 if attempt.outcome == "completed" else None
    yield AttemptEnded(job_id, number, attempt.ended, attempt.outcome, exit_code)


def _question(arrival: Arrival) -> object:
    job = arrival.job
    asked = job.id, job.submitted, job.request, job.user, job.kind, job.queue_priority, job.priority
    return asked, job.deadline, job.expected_s, arrival.duration_s, arrival.utilization


def _answer(result: JobResult) -> object:
    devices = [device.id for device in result.devices]
    return result.arrival.job.id, result.started, result.ended, result.ran_s, result.attempts, devices


def _digest(*values: object) -> str:
    """Six letters that tell one thing from another."""
    return sha256(repr(values).encode()).hexdigest()[:6]

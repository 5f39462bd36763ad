"""The facts of a simulation, as a live pool would have recorded them, so that every view and query works.

A run under one policy is a pool of its own (`sim:srtf@4f1c2a`), and the runs of one workload on one cluster
are an experiment, within which `gpu-flows sql experiments` compares them. The names end in digests of the
outcome and of the input, so that the same run gives the same facts, and recording it again changes nothing.

The simulated clock starts at the epoch, so `epoch(submitted)` is the second of the trace. A simulation has no
samples, so `utilization` is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_flows.analytics.fact_spool import Spool
from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptStarted,
    DeviceSeen,
    ExperimentRan,
    Fact,
    JobEnded,
    JobQueued,
    JobSubmitted,
    NodeSeen,
    Offered,
    ProtectionSet,
    Swapped,
)
from gpu_flows.analytics.warehouse import Warehouse
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.protection import UNPROTECTED
from gpu_flows.schedulers.simulation.outcome import Attempt, JobResult, Simulation
from gpu_flows.schedulers.workload import Arrival

RUNTIME = "simulated"
FACTS_PER_WRITE = 1_000
PATIENCE_S = 5.0  # how long to wait for a process that has the warehouse open


@dataclass(frozen=True, slots=True)
class Experiment:
    """A workload on a cluster, which is simulated under several policies."""

    name: str
    description: str  # JSON object

    @classmethod
    def of(cls, title: str, description: Mapping[str, object], arrivals: Iterable[Arrival]) -> Experiment:
        """Name the experiment after its title and a digest of its description and its jobs."""
        text = json.dumps(description, sort_keys=True, default=str)
        return cls(f"{title}@{_digest(text, *map(_inputs, arrivals))}", text)


def write_simulations(
    database: Path, experiment: Experiment, simulations: Mapping[str, Simulation], now: float
) -> None:
    """Load simulations, by the names of their policies, into a warehouse, which is created if needed."""
    with TemporaryDirectory() as folder:
        for policy, simulation in simulations.items():
            spool_facts(Path(folder), list_facts(simulation, policy, experiment, now))
        load_spool(database, Path(folder))


def spool_facts(folder: Path, facts: Iterable[Fact]) -> None:
    """Write facts to a folder, for `load_spool`. Several processes may use one folder."""
    spool, rest = Spool(folder), iter(facts)
    while batch := list(islice(rest, FACTS_PER_WRITE)):
        spool.append(batch)
    spool.close()


def load_spool(database: Path, folder: Path) -> None:
    """Load the facts in the folder, if any, into a warehouse, whose schema and views are brought up to date.
    Raises WarehouseError."""
    warehouse, spool = Warehouse(database), Spool(folder)
    try:
        warehouse.load(lambda: [], PATIENCE_S)
        while spool.ready():
            warehouse.load(lambda: spool.ready()[:1], PATIENCE_S)
    finally:
        warehouse.close()


def list_facts(simulation: Simulation, policy: str, experiment: Experiment, now: float) -> Iterator[Fact]:
    """Yield every fact that a live pool would have recorded. `now` is the real time of the experiment."""
    label = policy.replace(",", "+")  # options accept lists of pools, separated by commas
    pool = f"sim:{label}@{_digest(*map(_outcome, simulation.jobs))}"
    yield ExperimentRan(experiment.name, now, experiment.description)
    first = min((job.arrival.job.submitted for job in simulation.jobs), default=0.0)
    for position, node in enumerate(simulation.nodes):
        yield NodeSeen.of(node, position, pool, first)
    # Devices count from the first job that ended, as in the summary: those of other jobs were not used.
    submitted = [job.arrival.job.submitted for job in simulation.jobs if job.ended is not None]
    opened = min(submitted, default=0.0)
    for device in all_devices(simulation.nodes):
        yield DeviceSeen(
            f"{pool}/{device.id}", pool, device.node, device.index, device.model, device.memory_mb, opened
        )
    yield from _policy_facts(simulation, pool, policy, first)
    for result in simulation.jobs:
        yield from _job_facts(result, pool, experiment.name)
    decider = f"{policy} (failed)" if simulation.policy_error else policy
    arrivals = {result.arrival.job.id: result.arrival for result in simulation.jobs}
    for attempt in simulation.attempts:
        arrival = arrivals[attempt.job_id]
        yield from _attempt_facts(attempt, pool, decider, arrival, has_network=bool(simulation.network))
    for time, offer in simulation.offers:
        yield Offered.of(offer, f"{pool}/{offer.job.id}", pool, decider, time)


def _policy_facts(simulation: Simulation, pool: str, label: str, first: float) -> Iterator[Fact]:
    """Yield which policy decided, from when on. The first one has the label of the whole simulation."""
    unprotected = UNPROTECTED.min_run_seconds, UNPROTECTED.most_preemptions
    yield ProtectionSet(first, pool, *unprotected)
    before = ""
    for swap in simulation.swaps:
        name = swap.policy if before else label
        yield Swapped(swap.time if before else first, pool, before, name, json.dumps(swap.options))
        before = name


def _job_facts(result: JobResult, pool: str, experiment: str) -> Iterator[Fact]:
    job = result.arrival.job
    job_id = f"{pool}/{job.id}"
    yield JobSubmitted.of(job, job_id, pool, flow=job.kind, experiment=experiment)
    if result.told:
        yield JobQueued.of(result.told, job_id, result.arrival.enters)
    if result.ended is not None:
        yield JobEnded(job_id, result.ended, "completed")
    elif result.reason and result.reason.code == "impossible":
        yield JobEnded(job_id, job.submitted, "refused", str(result.reason))


def _attempt_facts(
    attempt: Attempt, pool: str, policy: str, arrival: Arrival, has_network: bool
) -> Iterator[Fact]:
    job_id, number, started = f"{pool}/{attempt.job_id}", attempt.number, attempt.started
    nodes = json.dumps(list(dict.fromkeys(device.node for device in attempt.devices)))
    yield AttemptStarted(job_id, number, policy, RUNTIME, nodes, started, started)
    for device in attempt.devices:
        reserved = arrival.job.memory_mb or device.memory_mb
        yield Allocated(job_id, number, f"{pool}/{device.id}", device.node, reserved, started)
    exit_code = 0 if attempt.outcome == "completed" else None
    release_s = arrival.release_s if attempt.outcome == "completed" else 0.0
    yield AttemptEnded(
        job_id,
        number,
        attempt.ended,
        attempt.outcome,
        exit_code,
        comm_s=attempt.comm_s if has_network else None,
        released=attempt.ended + release_s,
    )


def _inputs(arrival: Arrival) -> object:
    job = arrival.job
    request = job.id, job.submitted, job.request, job.user, job.kind, job.queue_priority, job.priority
    return request, job.deadline, job.expected_s, arrival.duration_s, arrival.utilization


def _outcome(result: JobResult) -> object:
    devices = [device.id for device in result.devices]
    return result.arrival.job.id, result.started, result.ended, result.ran_s, result.attempts, devices


def _digest(*values: object) -> str:
    """Return six characters that differ for different values."""
    return sha256(repr(values).encode()).hexdigest()[:6]

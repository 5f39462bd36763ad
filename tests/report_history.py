"""A history for figures: what a live pool would have recorded of a simulated workload with preemptions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from analytics_history import T, copy_empty_warehouse

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    DeviceSeen,
    Fact,
    JobEnded,
    JobSubmitted,
    NodeSeen,
    Sampled,
    SavedWork,
)
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate

POOL = "lab"
USERS = ("ann", "bob", "<img src=x onerror=alert(1)>", "dora")
EVIL = "<script>alert('1')</script>&\"\x1b[2J\u202e%{x}"


def record_live(
    folder: Path,
    jobs: int = 60,
    cluster: str = "2x4",
    policies: tuple[str, ...] = ("srtf",),
    power: bool = True,
) -> Path:
    """Return a warehouse in which a pool has run a workload under each policy, one after the other."""
    database = copy_empty_warehouse(folder)
    recorder = Recorder(database, folder / "spool")
    begin = T
    for number, policy in enumerate(policies):
        done = run_workload(policy, jobs, cluster)
        recorder.write(*_facts(done, policy, begin, prefix=f"round{number}-"))
        recorder.write(*_samples(done, begin, power))
        begin += 60 + max(attempt.ended for attempt in done.attempts)
    recorder.close()
    return database


def run_workload(policy: str, jobs: int = 60, cluster: str = "2x4") -> Simulation:
    arrivals = generate(f"poisson:jobs={jobs},rate_per_hour=40,mean_s=600", 7)
    return simulate(arrivals, declare(cluster), make_policy(policy), Conditions(checkpoint_s=2, restart_s=5))


def _facts(done: Simulation, policy: str, begin: float, prefix: str) -> Iterator[Fact]:
    for node in done.nodes:
        yield NodeSeen(begin, POOL, node.name, node.rack)
    for device in all_devices(done.nodes):
        yield DeviceSeen(device.id, POOL, device.node, device.index, "GTX", 11_000, begin)
    for number, result in enumerate(done.jobs):
        job, user = result.arrival.job, USERS[number % len(USERS)]
        name = EVIL if number == 0 else f"train-{number}"
        job_id, submitted = f"{prefix}{job.id}", begin + job.submitted
        yield JobSubmitted(
            job_id, POOL, name, "train", "d", user, "[]", job.gpus, 0, 0, None, None, submitted
        )
        if result.ended is not None:
            yield JobEnded(job_id, begin + result.ended, "failed" if number % 17 == 3 else "completed")
    for attempt in done.attempts:
        job_id, number = f"{prefix}{attempt.job_id}", attempt.number
        started, ended = begin + attempt.started, begin + attempt.ended
        nodes = json.dumps(sorted({device.node for device in attempt.devices}))
        yield AttemptStarted(job_id, number, policy, "process", nodes, started, started)
        for device in attempt.devices:
            yield Allocated(job_id, number, device.id, device.node, 0, started)
        yield AttemptEnded(job_id, number, ended, attempt.outcome, 0)
        if attempt.outcome == "preempted":
            yield AttemptInterrupted(job_id, number, ended - 2, ended, "preempted", policy, "[]")
        restored = started + 5 if number > 1 else None
        yield SavedWork(job_id, number, 1, 0.5, 1 << 20, ended, 10, restored, 3.0, 5, 4.0)


def _samples(done: Simulation, begin: float, power: bool) -> Iterator[Fact]:
    busy: dict[str, list[tuple[float, float]]] = {}
    for attempt in done.attempts:
        for device in attempt.devices:
            busy.setdefault(device.id, []).append((attempt.started, attempt.ended))
    last = max(attempt.ended for attempt in done.attempts)
    for device in all_devices(done.nodes):
        spans = busy.get(device.id, [])
        for step in range(int(last // 10) + 1):
            held = any(since <= 10 * step < until for since, until in spans)
            watts = (180.0 if held else 25.0) if power else None
            yield Sampled(begin + 10 * step, device.id, 85.0 if held else 0.0, 5000.0, watts, 60.0)

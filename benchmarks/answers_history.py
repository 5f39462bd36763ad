"""The facts of a busy pool, from a few random numbers: what benchmarks/answers_sql.py asks about."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    Decided,
    DeviceEvent,
    DeviceSeen,
    ExperimentRan,
    Fact,
    FeaturesSeen,
    Forecast,
    JobEnded,
    JobSubmitted,
    MemoryPeak,
    NodeSeen,
    Offered,
    Predicted,
    ProgressReported,
    Regretted,
    SavedWork,
    ShadowDecided,
    ShadowProjected,
    Swapped,
)

START, DAY = 1_700_000_040.0, 86_400.0
NODES, PER_NODE = 6, 4
POOL, USERS, POLICIES = "gpu", [f"user{number}" for number in range(12)], ["fifo", "srtf", "tiresias"]
DEVICES = [
    (f"GPU-{n:02d}{i}-1111-2222-3333-444444444444", f"n{n}") for n in range(NODES) for i in range(PER_NODE)
]


class Cluster:
    """Devices and when each is free: jobs are placed one after another on those that are free first."""

    def __init__(self) -> None:
        self._free = [(START, device, node) for device, node in DEVICES]

    def take(self, count: int, submitted: float, run_s: float) -> tuple[float, list[tuple[str, str]]]:
        taken = [heapq.heappop(self._free) for _ in range(count)]
        started = max(submitted, *(free for free, _, _ in taken)) + 0.1
        for _, device, node in taken:
            heapq.heappush(self._free, (started + run_s, device, node))
        return started, [(device, node) for _, device, node in taken]

    @property
    def busy_until(self) -> float:
        return max(free for free, _, _ in self._free)


def make_facts(jobs: int, waiting: int, end: float) -> Iterator[Fact]:
    """The facts of a busy pool: ended jobs until a little before the end, running and waiting ones at it."""
    chance, cluster = random.Random(0), Cluster()
    for number in range(NODES):
        yield NodeSeen(START, POOL, f"n{number}", f"r{number // 2}")
    for number, (device, node) in enumerate(DEVICES):
        yield DeviceSeen(device, POOL, node, number % PER_NODE, "A100", (40_960, 81_920)[number % 2], START)
    for number in range(40):
        at, (device, node) = START + (end - START) * number / 40, DEVICES[number % len(DEVICES)]
        yield DeviceEvent(at, device, node, "sick", "xid 79")
        yield DeviceEvent(at + 900, device, node, "healthy")
    for number in range(20):
        before, after = POLICIES[number % 3], POLICIES[(number + 1) % 3]
        yield Swapped(START + (end - START) * number / 20, POOL, before, after, "{}")
    for number in range(5):
        yield ExperimentRan(f"bench{number}", START + DAY * number, "{}")
    yield from projections(end, chance)
    mean_s = (end - START) * len(DEVICES) / jobs / 2.0
    for number in range(jobs):
        submitted = START + (end - START - 7200) * number / jobs
        yield from ended_job(f"job-{number}", number, submitted, chance, cluster, mean_s)
    for number in range(20):
        job_id = f"running-{number}"
        yield submitted_job(job_id, number, end - 3600, 1, chance)
        yield AttemptStarted(job_id, 1, "srtf", "process", '["n0"]', end - 1800, end - 1800)
        yield Allocated(job_id, 1, *DEVICES[number], 40_960, end - 1800)
    for number in range(waiting):
        job_id, submitted = f"waiting-{number}", end - 3500 + number
        yield submitted_job(job_id, number, submitted, chance.choice([1, 2, 4, 8]), chance)
        yield from forecasts(job_id, submitted, end + 600, end + 1200, "srtf", chance)


def projections(end: float, chance: random.Random) -> Iterator[Fact]:
    """What each policy would have done with the jobs of each hour, and of each night."""
    for hour in range(int((end - START) // 3600)):
        policy = POLICIES[hour // 12 % 3]
        for shadow in POLICIES:
            projected = 50, chance.uniform(500, 1000), chance.uniform(5000, 9000)
            yield ShadowProjected(START + 3600.0 * hour, POOL, policy, shadow, *projected)
        if hour % 24 == 0:
            at = START + 3600.0 * hour
            yield Regretted(at, POOL, at - DAY, at, policy, "srtf", chance.uniform(0, 30), 2000)


def forecasts(
    job_id: str, submitted: float, started: float, ended: float, policy: str, chance: random.Random
) -> Iterator[Forecast]:
    """Three forecasts of a job while it waited, and one while it ran."""
    for part in range(4):
        at = submitted + (started - submitted) * part / 3 if part < 3 else (started + ended) / 2
        start_s, end_s = (
            max(0.0, started - at) * chance.uniform(0.7, 1.2),
            (ended - at) * chance.uniform(0.7, 1.2),
        )
        times = at + start_s, at + 1.3 * start_s, at + end_s, at + 1.3 * end_s
        yield Forecast(at, POOL, job_id, *times, policy)


def shadowed(at: float, policy: str, chance: random.Random) -> Iterator[ShadowDecided]:
    """What the shadows would have decided instead."""
    for shadow in POLICIES:
        if shadow != policy:
            same = chance.random() < 0.7
            plan = same, same and chance.random() < 0.5, 1, 0, float(same), chance.uniform(50, 900), 0
            yield ShadowDecided(at, POOL, policy, shadow, *plan)


def submitted_job(job_id: str, number: int, at: float, gpus: int, chance: random.Random) -> JobSubmitted:
    user, experiment = USERS[chance.randrange(12)], f"bench{number // 100}" if number < 500 else ""
    memory_mb, expected_s = chance.choice([0, 8_000, 40_000, 60_000]), chance.uniform(10, 1000)
    request = gpus, memory_mb, chance.randrange(3), at + 7200 if number % 3 else None, expected_s
    return JobSubmitted(
        job_id, POOL, f"train {job_id}", f"flow{number % 30}", "d", user, "[]", *request, at, experiment
    )


def ended_job(
    job_id: str, number: int, submitted: float, chance: random.Random, cluster: Cluster, mean_s: float
) -> Iterator[Fact]:
    gpus, kind = chance.choice([1, 1, 1, 1, 2, 2, 4]), f"kind{number % 30}"
    yield submitted_job(job_id, number, submitted, gpus, chance)
    yield FeaturesSeen(job_id, kind, "{}", "[]")
    attempts = 2 if number % 10 == 0 else 1
    outcome = "failed" if number % 25 == 1 else "completed"
    at = submitted
    for attempt in range(1, attempts + 1):
        run_s = min(chance.expovariate(attempts * gpus / mean_s), 7000.0)
        started, held = cluster.take(gpus, at, run_s)
        at, is_last = started + run_s, attempt == attempts
        policy = POLICIES[int((started - START) // (DAY / 2)) % 3]
        nodes = json.dumps(sorted({node for _, node in held}))
        yield AttemptStarted(job_id, attempt, policy, "process", nodes, started - 0.1, started)
        yield from (Allocated(job_id, attempt, device, node, 40_960, started) for device, node in held)
        yield AttemptEnded(job_id, attempt, at, outcome if is_last else "preempted", 0)
        if not is_last:
            yield AttemptInterrupted(job_id, attempt, at - 1, at, "preempted", policy, "[]")
        yield SavedWork(job_id, attempt, 3, 1.5, 10**8, at - 5, 100, None, None, None, 5.0)
        yield from (MemoryPeak(job_id, attempt, device, 20_000.0, "nvml") for device, _ in held)
        for part in range(4):
            fraction = (attempt - 1 + part / 4) / attempts
            yield ProgressReported(
                job_id, attempt, started + run_s * part / 4, fraction, run_s * (1 - part / 4), "tqdm"
            )
        yield Decided(started - 0.1, POOL, policy, 5, 10, 1, 150.0)
        yield from shadowed(started - 0.1, policy, chance)
        if attempt == 1:
            yield from forecasts(job_id, submitted, started, at, policy, chance)
        yield Offered(started - 0.1, POOL, job_id, policy, "node", True, started - submitted, None, 1.0, 0.1)
    for quantity, value in (("seconds", 100.0), ("memory_mb", 20_000.0)):
        yield Predicted(job_id, submitted, quantity, "", value, 2 * value, "history")
    yield JobEnded(job_id, at, outcome)

"""An hour of a small lab, for tests and for docs/sql.md: times are seconds after T (22:14, UTC).

Two GPUs, one on each node. Ann's `a` runs on g0; bob's `b` needs both, so it waits, runs, and is preempted
for ann's `c`, which fails; bob's `d` runs beside it and does nothing; `b` resumes under another policy.
Carl's `e` is refused, his `f` runs and bob's `w` waits at the end (4000). g0 falls sick at 3900. Another pool
has an idle GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    DeviceEvent,
    DeviceSeen,
    ExperimentRan,
    Fact,
    Forecast,
    JobEnded,
    JobSubmitted,
    LearningStep,
    MemoryPeak,
    NodeSeen,
    Offered,
    Predicted,
    Regretted,
    Sampled,
    SavedWork,
    ShadowDecided,
    ShadowProjected,
    Swapped,
)

T = 1_700_000_040.0  # Tuesday 14 November 2023, 22:14 UTC
END = 4000
NODES = {"g0": "n0", "g1": "n1"}


def lab_facts() -> Iterator[Fact]:
    yield from _devices()
    yield from _policies()
    yield from _jobs()
    yield from _attempts()
    yield from _predictions()
    yield from _forecasts()
    yield from _samples()


def _devices() -> Iterator[Fact]:
    for device, node in NODES.items():
        yield NodeSeen(T, "pool", node, "r0")
        yield DeviceSeen(device, "pool", node, 0, "GTX", 11_000, T)
    yield DeviceEvent(T + 3900, "g0", "n0", "sick", "xid 79")
    yield DeviceSeen("x0", "other", "m0", 0, "GTX", 11_000, T + 3000)


def _policies() -> Iterator[Fact]:
    yield Swapped(T, "pool", "", "fifo", "{}")
    yield Swapped(T + 3000, "pool", "fifo", "srtf", "{}")
    yield Swapped(T + 3100, "pool", "srtf", "nope", "{}", "unknown policy")
    yield ExperimentRan("exp", T, "{}", "edited")
    yield Offered(T + 1000, "pool", "b", "fifo", "rack", False, 900.0, 2000.0, 1.5, 0.1)
    yield Offered(T + 1815, "pool", "b", "fifo", "rack", True, 1715.0, None, 1.25, 0.2)
    yield LearningStep("t", 1, 10, T, 1.0, 200.0, 100.0, 0.9, 0.5, 5.0)
    yield LearningStep("t", 1, 20, T, 3.0, 90.0, 100.0, 0.4, 0.5, 10.0)


def _jobs() -> Iterator[Fact]:
    for job_id, user, gpus, memory_mb, submitted, deadline, experiment in (
        ("a", "ann", 1, 0, 0, 2000, "exp"),
        ("b", "bob", 2, 0, 100, 3000, ""),
        ("c", "ann", 1, 0, 2000, None, "exp"),
        ("d", "bob", 1, 6_000, 2400, None, ""),
        ("e", "carl", 9, 0, 3700, None, ""),
        ("f", "carl", 1, 0, 3800, None, ""),
        ("w", "bob", 2, 0, 3850, 3900, ""),
    ):
        due = None if deadline is None else T + deadline
        request = gpus, memory_mb, 0, due, None
        yield JobSubmitted(job_id, "pool", job_id, "f", "d", user, "[]", *request, T + submitted, experiment)
    for job_id, ended, outcome in (
        ("a", 1810, "completed"),
        ("b", 3620, "completed"),
        ("c", 3020, "failed"),
        ("d", 3000, "completed"),
        ("e", 3700, "refused"),
    ):
        yield JobEnded(job_id, T + ended, outcome, "too large" if outcome == "refused" else "")


def _attempts() -> Iterator[Fact]:
    for job_id, attempt, policy, devices, planned, started, ended, outcome, comm_s in (
        ("a", 1, "fifo", ["g0"], 8, 10, 1810, "completed", None),
        ("b", 1, "fifo", ["g0", "g1"], 1815, 1820, 2420, "preempted", 30.0),
        ("b", 2, "srtf", ["g0", "g1"], 3019, 3020, 3620, "completed", None),
        ("c", 1, "fifo", ["g0"], 2420, 2420, 3020, "failed", None),
        ("d", 1, "fifo", ["g1"], 2420, 2430, 3000, "completed", None),
        ("f", 1, "srtf", ["g1"], 3800, 3810, None, "", None),
    ):
        nodes = "[" + ", ".join(f'"{NODES[device]}"' for device in devices) + "]"
        yield AttemptStarted(job_id, attempt, policy, "process", nodes, T + planned, T + started)
        for device in devices:
            yield Allocated(job_id, attempt, device, NODES[device], 0, T + started)
        if ended is not None:
            failed = outcome == "failed"
            exit_code, detail = int(failed), "ValueError" if failed else ""
            yield AttemptEnded(job_id, attempt, T + ended, outcome, exit_code, detail, comm_s=comm_s)
    yield AttemptInterrupted("b", 1, T + 2410, T + 2420, "preempted", "fifo", '["c"]')
    yield SavedWork("b", 1, 3, 6.0, 200_000_000, T + 2360, 300, None, None, None, 60.0)
    yield SavedWork("b", 2, 0, 0.0, 0, None, 600, T + 3030, 4.0, 300, 0.0)


def _predictions() -> Iterator[Fact]:
    yield Predicted("a", T + 5, "seconds", "", 900.0, 2000.0, "stated")
    yield Predicted("d", T + 2401, "memory_mb", "", 4000.0, 4500.0, "history", "v1")
    yield MemoryPeak("a", 1, "g0", 5000.0, "nvml")
    yield MemoryPeak("d", 1, "g1", 2000.0, "nvml")


def _forecasts() -> Iterator[Fact]:
    yield Forecast(T + 1000, "pool", "b", T + 1800, T + 1900, T + 2400, T + 2700, "fifo")
    yield Forecast(T + 2400, "pool", "d", T + 2420, T + 2425, T + 2900, T + 3100, "fifo")
    yield ShadowDecided(T + 1815, "pool", "fifo", "srtf", True, False, 1, 0, 0.5, 200.0, 1)
    yield ShadowDecided(T + 2420, "pool", "fifo", "srtf", True, True, 2, 0, 1.0, 400.0, 0)
    yield ShadowProjected(T + 2000, "pool", "fifo", "fifo", 2, 1000.0, 2000.0)
    yield ShadowProjected(T + 2000, "pool", "fifo", "srtf", 2, 500.0, 2500.0)
    yield Regretted(T + 3500, "pool", T, T + 3000, "fifo", "srtf", 25.0, 4)


def _samples() -> Iterator[Fact]:
    """Every ten seconds, so that each reading is valid until the next one. g1 does not report its power."""
    busy = {
        "g0": [(10, 1810, 80.0, 200.0), (1820, 2420, 90.0, 250.0), (2420, 3020, 20.0, 100.0),
               (3020, 3620, 90.0, 250.0)],
        "g1": [(1820, 2420, 90.0, None), (2430, 3000, 0.0, None), (3020, 3620, 90.0, None),
               (3810, 4000, 50.0, None)],
    }  # fmt: skip
    for device, periods in busy.items():
        for at in range(0, 3900 if device == "g0" else END + 1, 10):
            held = [values for since, until, *values in periods if since <= at < until]
            idle_w = 50.0 if device == "g0" else None
            utilization, power_w = held[0] if held else (0.0, idle_w)
            memory_mb, temperature_c = (5000.0, 60.0) if held else (0.0, 40.0)
            yield Sampled(T + at, device, utilization, memory_mb, power_w, temperature_c)
    yield Sampled(T + 3500, "x0", 0.0, 0.0, None, 30.0)

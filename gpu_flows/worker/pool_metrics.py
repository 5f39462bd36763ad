"""A pool's numbers as metrics for Prometheus, from its status and its warehouse.

Labels are pools, reasons, outcomes and devices, whose number is limited; no metric has a label for each job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from gpu_flows.worker.status import Status

WAIT_BUCKETS_S = (1, 10, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600)
MIB = 2**20
DEVICE = ("pool", "node", "device", "model")

# For each outcome: the jobs, their waiting time, and how many waited no longer than each limit.
ENDED_SQL = f"""
    select outcome, count(*), sum(waited_s),
        [{", ".join(f"count_if(waited_s <= {limit})" for limit in WAIT_BUCKETS_S)}]
    from job_history where pool = $pool and state = 'ended'
    group by outcome
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The jobs of a pool that ended with one outcome."""

    outcome: str
    jobs: int
    waited_s: float
    within: Sequence[int]  # how many waited no longer than each of WAIT_BUCKETS_S


def make_registry(pool: str, status: Status | None, ended: Sequence[Ended], now: float) -> CollectorRegistry:
    """Return a pool's metrics. A status that is old, or of a worker that stands by, tells only that it is."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics([*describe_pool(pool, status, now), *describe_ended(pool, ended)]))
    return registry


class _Metrics(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def describe_pool(pool: str, status: Status | None, now: float) -> Iterator[Metric]:
    """Yield the metrics of a pool's status."""
    serves = status is not None and status.fresh and status.leads
    yield _gauge("up", "Whether a worker on this machine serves the pool.", pool, serves)
    if status is None:
        return
    yield _gauge("worker_leads", "Whether the worker holds the pool's lease.", pool, status.leads)
    age = max(0.0, now - status.at)
    yield _gauge("status_age_seconds", "How old the worker's status is.", pool, age)
    if serves:
        yield from _describe_policy(status)
        yield from _describe_jobs(status)
        yield from _describe_devices(status)


def describe_ended(pool: str, ended: Sequence[Ended]) -> Iterator[Metric]:
    """Yield the metrics of the jobs that have ended, as the warehouse counts them."""
    if not ended:
        return
    jobs = CounterMetricFamily("gpu_flows_jobs_ended", "Jobs that have ended.", labels=("pool", "outcome"))
    waits = HistogramMetricFamily(
        "gpu_flows_job_wait_seconds", "How long jobs that have ended had waited.", labels=("pool", "outcome")
    )
    for found in ended:
        labels = [pool, found.outcome]
        jobs.add_metric(labels, found.jobs)
        buckets = [(str(float(limit)), n) for limit, n in zip(WAIT_BUCKETS_S, found.within, strict=True)]
        waits.add_metric(labels, [*buckets, ("+Inf", found.jobs)], found.waited_s)
    yield jobs
    yield waits


def _describe_policy(status: Status) -> Iterator[Metric]:
    policy = status.policy
    info = InfoMetricFamily("gpu_flows_policy", "The policy of the pool.", labels=("pool",))
    info.add_metric([status.pool], {"name": policy["name"], "serving": policy["serving"]})
    yield info
    failed = policy["serving"] != policy["name"]
    yield _gauge("policy_failed", "Whether another policy has to replace it.", status.pool, failed)


def _describe_jobs(status: Status) -> Iterator[Metric]:
    waiting = _family("jobs_waiting", "Jobs that wait, by the reason.", ("pool", "reason"))
    for reason, count in status.waiting_by_reason.items():
        waiting.add_metric([status.pool, reason], count)
    yield waiting
    yield _gauge("jobs_running", "Jobs that run.", status.pool, len(status.running))
    longest = max((job["waited"] for job in status.waiting), default=0.0)
    yield _gauge("longest_wait_seconds", "For how long the oldest job waits.", status.pool, longest)
    yield _gauge(
        "gpus_waited_for", "Devices that the waiting jobs ask for.", status.pool, status.gpus_waited_for
    )
    yield from _describe_forecast(status)


def _describe_forecast(status: Status) -> Iterator[Metric]:
    """In how long the next of the waiting jobs starts, and the last of them, as far as it was predicted."""
    family = _family(
        "predicted_start_seconds",
        "In how long the next and the last of the waiting jobs start.",
        ("pool", "job", "quantile"),
    )
    for quantile, key in (("0.5", "start_p50"), ("0.9", "start_p90")):
        etas = [eta for job in status.waiting if (eta := (job.get("eta") or {}).get(key)) is not None]
        for which, choose in (("next", min), ("last", max)):
            if etas:
                family.add_metric([status.pool, which, quantile], max(0.0, choose(etas) - status.at))
    if family.samples:
        yield family


def _describe_devices(status: Status) -> Iterator[Metric]:
    states = Counter({"free": 0, "in_use": 0, "out_of_use": 0})
    states.update(map(_find_state, status.devices))
    devices = _family("devices", "Devices by what they do.", ("pool", "state"))
    for state, count in states.items():
        devices.add_metric([status.pool, state], count)
    yield devices
    for name, text, key, factor in (
        ("utilization_ratio", "The device's utilization, 0 to 1.", "utilization", 0.01),
        ("memory_used_bytes", "The device's memory in use.", "memory_used_mb", MIB),
        ("memory_bytes", "The device's memory.", "memory_mb", MIB),
        ("power_watts", "What the device draws.", "power_w", 1),
        ("temperature_celsius", "The device's temperature.", "temperature_c", 1),
    ):
        family = _family(f"device_{name}", text, DEVICE)
        for device in status.devices:
            if device[key] is not None:
                family.add_metric(_label(status.pool, device), device[key] * factor)
        yield family
    healthy = _family("device_healthy", "Whether the device can be used.", DEVICE)
    jobs = _family("device_jobs", "Jobs on the device.", DEVICE)
    for device in status.devices:
        healthy.add_metric(_label(status.pool, device), float(device["healthy"]))
        jobs.add_metric(_label(status.pool, device), len(device["jobs"]))
    yield from (healthy, jobs)


def _find_state(device: dict[str, Any]) -> str:
    return "in_use" if device["jobs"] else "free" if device["healthy"] else "out_of_use"


def _label(pool: str, device: dict[str, Any]) -> list[str]:
    return [pool, device["node"], device["id"], device["model"]]


def _family(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"gpu_flows_{name}", text, labels=labels)


def _gauge(name: str, text: str, pool: str, value: float) -> GaugeMetricFamily:
    family = _family(name, text, ("pool",))
    family.add_metric([pool], float(value))
    return family

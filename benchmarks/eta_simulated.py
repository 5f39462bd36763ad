"""How good forecasts are over thousands of jobs: a simulated pool in which each arrival is forecast.

The durations are learned from the jobs that ended before, or stated by owners who are off by a random factor.
Each job is forecast once, when it arrives, from the state of the pool at that moment; later arrivals are not
known then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_flows.forecasting.child import MOST_RECENT, capture
from gpu_flows.forecasting.messages import Settings
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.forecast.duration_spread import P90
from gpu_flows.schedulers.forecast.eta import Eta, forecast
from gpu_flows.schedulers.forecast.forward import UnknownDurations
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.simulation.estimates import Estimates
from gpu_flows.schedulers.simulation.simulator import Run
from gpu_flows.schedulers.simulation.workloads.recurring import Recurring
from gpu_flows.schedulers.workload import Arrival


@dataclass(frozen=True)
class Told:
    """A forecast of a job, and what became of it."""

    policy: str
    quantity: str  # start or end
    horizon_s: float
    error_s: float  # later than the median
    covered: bool


class Remembered(Estimates):
    """What is expected of each job when it arrives: stated with an error, or learned."""

    def __init__(self, sigma: float | None) -> None:
        self._sigma, self._random = sigma, random.Random(0)
        self._predictor = DurationPredictor()
        self.known: dict[str, Estimate] = {}

    def estimate(self, arrival: Arrival) -> float | None:
        job = arrival.job
        if self._sigma is None:
            found = self._predictor.estimate(_features(arrival), "", job.gpus)
        else:
            stated = arrival.duration_s * self._random.lognormvariate(0, self._sigma)
            found = Estimate(stated, stated * math.exp(P90 * self._sigma), "stated")
        if found:
            self.known[job.id] = found
        return found.value if found else None

    def learn(self, arrival: Arrival) -> None:
        self._predictor.learn(_features(arrival), "", arrival.job.gpus, arrival.duration_s)


def _features(arrival: Arrival) -> JobFeatures:
    return JobFeatures(flow=arrival.job.kind, user=arrival.job.user, gpus=arrival.job.gpus)


def forecast_arrivals(
    policy: str,
    jobs: int,
    every: int,
    sigma: float | None,
    load: float = 0.9,
    cluster: str = "2x4",
    seed: int = 1,
) -> list[Told]:
    """Simulate a pool under a policy, and forecast every so many arrivals."""
    nodes, estimates = declare(cluster), Remembered(sigma)
    devices = sum(len(node.devices) for node in nodes)
    arrivals = list(Recurring(jobs=jobs).arrivals(random.Random(seed)))
    arrivals = _at_load(arrivals, devices, load)
    run = Run(arrivals, nodes, make_policy(policy), estimates=estimates)
    told: dict[str, tuple[float, Eta]] = {}
    seen = 0
    settings = Settings(policy)
    for now in run.events():
        come = list(estimates.known)[seen:]
        seen += len(come)
        for number, job_id in enumerate(come, seen):
            if number % every == 0 and number > jobs // 10:
                state = _capture(run, settings, estimates, now)
                try:
                    told[job_id] = now, forecast(state, draws=20)[job_id]
                except (UnknownDurations, KeyError):
                    continue
    return list(_compare(policy, run, told))


def _at_load(arrivals: list[Arrival], devices: int, load: float) -> list[Arrival]:
    """Return the arrivals over such a time that they ask for this part of the devices."""
    work = sum(each.duration_s * each.job.gpus for each in arrivals)
    span = max(each.job.submitted for each in arrivals) or 1.0
    factor = work / (devices * load) / span
    return [replace(each, job=replace(each.job, submitted=each.job.submitted * factor)) for each in arrivals]


def _compare(policy: str, run: Run, told: dict[str, tuple[float, Eta]]) -> Iterator[Told]:
    for job_id, (now, eta) in told.items():
        result = run.result(job_id)
        if result.started is not None and result.started > now:
            error = result.started - eta.start_p50
            yield Told(policy, "start", eta.start_p50 - now, error, result.started <= eta.start_p90 + 1)
        if result.ended is not None:
            error = result.ended - eta.end_p50
            yield Told(policy, "end", eta.end_p50 - now, error, result.ended <= eta.end_p90 + 1)


def summarize(told: list[Told]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for quantity in ("start", "end"):
        some = [each for each in told if each.quantity == quantity]
        if some:
            error = sum(abs(each.error_s) for each in some) / len(some)
            horizon = sum(max(0.0, each.horizon_s) for each in some) / len(some)
            found[quantity] = {
                "forecasts": len(some),
                "covered_percent": 100 * sum(each.covered for each in some) / len(some),
                "below_median_percent": 100 * sum(each.error_s <= 0 for each in some) / len(some),
                "mean_abs_error_s": error,
                "mean_horizon_s": horizon,
            }
    return found


def _capture(run: Run, settings: Settings, estimates: Remembered, now: float) -> PoolState:
    """Return the state with the last arrivals, as the forecasting child knows it."""
    known = estimates.known
    recent = [(run.result(each).arrival.job.expecting(known[each].value), known[each]) for each in known]
    state = capture("pool", run.engine, settings, dict(known), now)
    return replace(state, recent=tuple(recent[-MOST_RECENT:]))

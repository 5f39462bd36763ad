"""What the warehouse tells about a pool's past that forecasts need: what launches, stops and restarts cost,
and how far durations were off that were stated or predicted.

Users state a round number or a limit, and predictors are trained on other jobs; both are corrected by what
the last jobs of the pool really took. Few jobs correct little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.schedulers.forecast.pool_state import Costs
from gpu_flows.schedulers.prediction.estimate import Estimate

PRIOR_JOBS = 5.0  # so many jobs correct by half of what they show
UNKNOWN_SPREAD = 1.3  # the 90th percentile of a stated duration, relative to it, before any job has ended
LAST = 300  # jobs, and attempts, that count

_COSTS = """
with completed as (select run_s from job_history where pool = $pool and outcome = 'completed'),
last_attempts as (
    select seconds(planned, started) as launch_s from attempt_history
    where pool = $pool and planned is not null and started >= planned
    order by started desc limit $last
)
select
    (select median(launch_s) from last_attempts) as launch_s,
    (select quantile_cont(launch_s, 0.9) from last_attempts) as launch_upper_s,
    any_value(checkpoint_s) as checkpoint_s,
    any_value(restart_s) as restart_s,
    any_value(migration_s) as migration_s,
    (select median(run_s) from completed) as typical_s,
    (select quantile_cont(run_s, 0.9) from completed) as upper_s
from preemption_costs where pool = $pool
"""
_OFF = """
with last as (
    select how, measured / value as of_value, measured / upper as of_upper
    from prediction_errors
    where pool = $pool and quantity = 'seconds' and how <> 'progress' and value > 0
    qualify row_number() over (partition by how order by time desc) <= $last
)
select how, count(*), median(of_value), quantile_cont(of_upper, 0.9) from last group by how
"""


@dataclass(frozen=True, slots=True)
class Correction:
    """By which factors durations were off."""

    value: float = 1.0  # of the median
    upper: float = 1.0  # of the 90th percentile

    @classmethod
    def learned(cls, jobs: int, value: float, upper: float, prior: Correction) -> Correction:
        """Return the correction that so many jobs show, with what was assumed before them."""
        share = jobs / (jobs + PRIOR_JOBS)
        return cls(
            max(value, 1e-3) ** share * prior.value ** (1 - share),
            max(upper, 1e-3) ** share * prior.upper ** (1 - share),
        )

    def apply(self, estimate: Estimate) -> Estimate:
        value = estimate.value * self.value
        return Estimate(value, max(value, estimate.upper * self.upper), estimate.how, estimate.detail)


ASSUMED = {"stated": Correction(upper=UNKNOWN_SPREAD)}


@dataclass(frozen=True, slots=True)
class PoolHistory:
    costs: Costs = field(default_factory=Costs)
    typical: Estimate | None = None  # the duration of a job; None: none has completed
    corrections: Mapping[str, Correction] = field(default_factory=lambda: ASSUMED)

    def correct(self, estimate: Estimate | None) -> Estimate | None:
        """Return the duration as this pool's jobs took it that were estimated in the same way."""
        correction = self.corrections.get(estimate.how) if estimate else None
        return correction.apply(estimate) if estimate and correction else estimate


def read_history(database: Path, pool: str) -> PoolHistory:
    """Return what the warehouse tells now. Blocks. Raises QueryError."""
    params = {"pool": pool, "last": LAST}
    found = run_query(database, _COSTS, params)
    costs = dict(zip(found.columns, found.rows[0], strict=True)) if found.rows else {}
    known = {name: float(value or 0.0) for name, value in costs.items()}
    typical_s, upper_s = known.pop("typical_s", 0.0), known.pop("upper_s", 0.0)
    corrections = {
        how: _learn_correction(how, jobs, value, upper)
        for how, jobs, value, upper in run_query(database, _OFF, params).rows
    }
    typical = Estimate(typical_s, max(typical_s, upper_s), "history") if typical_s else None
    return PoolHistory(Costs(**known), typical, {**ASSUMED, **corrections})


def _learn_correction(how: str, jobs: int, value: float, upper: float) -> Correction:
    """Return the correction that so many jobs show. A predictor learns the median by itself, and its first
    errors say nothing of later ones; so only its 90th percentile is corrected, and only upwards."""
    if how != "stated":
        value, upper = 1.0, max(1.0, upper)
    return Correction.learned(jobs, value, upper, ASSUMED.get(how, Correction()))

"""Facts about when jobs were expected to start and end."""

from __future__ import annotations

from gpu_flows.analytics.facts.base import PoolFact, in_table


@in_table("forecasts")
class Forecast(PoolFact):
    """It was forecast when a job starts and ends, by the median and by the 90th percentile."""

    job_id: str
    start_p50: float
    start_p90: float
    end_p50: float
    end_p90: float
    policy: str
    """Of the pool at that time."""

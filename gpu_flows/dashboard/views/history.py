"""The figures of the report over the last hour, day, week or month, each fetched when it comes into view."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from gpu_flows.analytics.figures.catalogue import CHARTS
from gpu_flows.analytics.figures.chart import Drawn, Scope, list_views, read_chart
from gpu_flows.dashboard.answers import Answer
from gpu_flows.dashboard.views.look import Look, Sources

PERIODS = {  # with their seconds, and how long a figure of one is kept
    "1h": ("the last hour", 3600.0, 20.0),
    "24h": ("the last 24 hours", 86_400.0, 60.0),
    "7d": ("the last 7 days", 7 * 86_400.0, 300.0),
    "30d": ("the last 30 days", 30 * 86_400.0, 600.0),
}
DEFAULT_PERIOD = "24h"
WIDE = {"gantt", "utilization"}
_CHARTS = {chart.key: chart for chart in CHARTS}


def period_of(look: Look) -> str:
    return look.get("period") if look.get("period") in PERIODS else DEFAULT_PERIOD


def values(look: Look) -> dict[str, Any]:
    return {
        "periods": PERIODS,
        "period": period_of(look),
        "charts": CHARTS,
        "wide": WIDE,
        "database": look.sources.settings.database,
        "exists": look.sources.settings.database.exists(),
    }


async def find_figure(sources: Sources, key: str, period: str) -> Answer:
    """Return a figure, drawn or with the reason why it is not. Raises KeyError for unknown names."""
    chart, (_, seconds, keep_s) = _CHARTS[key], PERIODS[period]
    settings = sources.settings

    def scope() -> Scope:
        until = datetime.now().astimezone()
        return Scope(settings.database, settings.pool, until - timedelta(seconds=seconds), until)

    async def read_views() -> set[str]:
        return await asyncio.to_thread(list_views, scope())

    async def read() -> Drawn:
        return await asyncio.to_thread(read_chart, chart, scope(), views.value)

    views = await sources.queries.wait("views", read_views, 60.0)
    if views.error:
        return views
    return await sources.queries.wait(("figure", key, period), read, keep_s)

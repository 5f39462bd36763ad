"""How many GPU-hours each user had."""

from __future__ import annotations

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.named_bars import draw_named_bars
from gpu_flows.analytics.figures.theme import MOST_NAMES, Drawing
from gpu_flows.analytics.query_runner import QueryResult

# What is held at the edges of the time counts in part, so that the hours of following reports add up.
GPU_HOURS = """
select coalesce(nullif(jobs.user_name, ''), 'no user') as user_name, count(distinct job_id) as jobs,
    sum(shared_seconds(holds.since, holds.until, $since, $until)) / 3600 as gpu_hours
from device_holds as holds join jobs using (job_id)
where holds.pool = $pool and holds.since < $until and holds.until > $since
group by all
order by gpu_hours desc, user_name
"""


def draw_gpu_hours(found: QueryResult) -> Drawing | None:
    """Draw a bar for each user, the largest on top; the last one is that of all others."""
    rows = [(user, hours) for user, _, hours in found.rows]
    total = sum(hours for _, hours in rows)
    if not total:
        return None
    shown, others = rows[:MOST_NAMES], rows[MOST_NAMES:]
    if others:
        shown.append((f"{len(others):,} others", sum(hours for _, hours in others)))
    names, values = zip(*shown, strict=True)
    texts = [f"{hours:,.3g} ({hours / total:.0%})" for hours in values]
    return Drawing(draw_named_bars(names, values, "GPU-hours", texts), f"{total:,.4g} GPU-hours in all")


CHART = Chart(
    key="gpu-hours",
    title="GPU-hours by user",
    meaning="How long the jobs of each user held devices; a job on four devices counts four times.",
    sql=f"-- Who held the devices?{GPU_HOURS}",
    draw=draw_gpu_hours,
    when_empty="No job held a device in this time.",
)

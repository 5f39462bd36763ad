"""How many GPU-hours each user had."""

from __future__ import annotations

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.named_bars import draw_named_bars
from gpu_flows.analytics.figures.theme import COLOURS, Drawing
from gpu_flows.analytics.query_runner import QueryResult

# What is held at the edges of the time counts in part, so that the hours of following reports add up.
GPU_HOURS = """
select coalesce(nullif(jobs.user_name, ''), 'no user') as user_name, count(distinct job_id) as jobs,
    sum(shared_seconds(held.since, held.until, $since, $until) / holders) / 3600 as gpu_hours
from hold_pieces as held join jobs using (job_id)
where held.pool = $pool and held.since < $until and held.until > $since
group by all
order by gpu_hours desc, user_name
"""


def draw_gpu_hours(found: QueryResult) -> Drawing | None:
    """Draw a bar for each user, the largest on top."""
    rows = [(user, hours) for user, _, hours in found.rows]
    return draw_named_bars(rows, "GPU-hours", lambda own, all_: f"{own:,.3g} ({own / all_:.0%})", COLOURS[0])


CHART = Chart(
    key="gpu-hours",
    title="GPU-hours by user",
    meaning="How long the jobs of each user held devices; jobs that share a device share its time.",
    sql=f"-- Who held the devices?{GPU_HOURS}",
    draw=draw_gpu_hours,
    when_empty="No job held a device in this time.",
    views=("hold_pieces",),
)

"""How good the estimated starts and ends of jobs were."""

from __future__ import annotations

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import (
    COLOURS,
    GREY,
    Drawing,
    duration_axis,
    format_duration,
    make_figure,
)
from gpu_flows.analytics.query_runner import QueryResult

GROUPS = 30  # by horizon, equally many estimates in each

_ERRORS = f"""
-- How far off were estimates, by how far ahead they were made?
with estimates as (
    select horizon_s, p50_error_s, covered, ntile({GROUPS}) over (order by horizon_s) as part
    from eta_errors
    where pool = $pool and made > $since and made <= $until and horizon_s > 0
)
select median(horizon_s) as horizon_s, count(*) as estimates, quantile_cont(p50_error_s, 0.1) as p10_error_s,
    median(p50_error_s) as median_error_s, quantile_cont(p50_error_s, 0.9) as p90_error_s,
    100 * avg(if(covered, 1, 0)) as covered_percent
from estimates
group by part
order by horizon_s
"""


def draw_eta(found: QueryResult) -> Drawing | None:
    """Draw the error over the horizon: its median, and a band that eight in ten estimates lie in."""
    if not found.rows:
        return None
    horizons, counts, low, middle, high, covered = (list(values) for values in zip(*found.rows, strict=True))
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "x": horizons}
    texts = [
        f"{format_duration(horizon)} ahead: off by {'?' if error is None else format_duration(error)}"
        f"<br>{count:,} estimates, {share:.0f}% in time"
        for horizon, error, count, share in zip(horizons, middle, counts, covered, strict=True)
    ]
    traces = [
        go.Scatter(y=low, showlegend=False, **edge),
        go.Scatter(y=high, fill="tonexty", fillcolor="rgba(86, 180, 233, 0.25)", name="eight in ten", **edge),
        go.Scatter(
            x=horizons,
            y=middle,
            mode="lines+markers",
            line={"color": COLOURS[0], "width": 2},
            name="median",
            hovertext=texts,
            hoverinfo="text",
        ),
    ]
    figure = make_figure(traces, height=360, showlegend=True)
    figure.add_hline(0, line={"color": GREY, "width": 1})
    figure.update_xaxes(**duration_axis("how far ahead, logarithmic", horizons[0], horizons[-1]))
    figure.update_yaxes(title={"text": "error in seconds"})
    total = sum(counts)
    share = sum(each * count for each, count in zip(covered, counts, strict=True)) / total
    return Drawing(
        figure,
        f"{total:,} estimates of starts and ends; for {share:.0f}% it was no later than their p90, of which"
        " 90% is the goal",
    )


CHART = Chart(
    key="eta",
    title="How good the ETAs were",
    meaning="Actual minus estimated time: above 0 it took longer; a narrow band around 0 is good.",
    sql=_ERRORS,
    draw=draw_eta,
    when_empty="No estimate of this time can be judged yet.",
    views=("eta_errors",),
)

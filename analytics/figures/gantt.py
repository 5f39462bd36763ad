"""Which job held which device, from when until when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from plotly import graph_objects as go

from gpu_flows.analytics.figures.bins import cut
from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.heat import (
    BINS,
    MARGINS,
    MOST_ROWS,
    NUMBERED_DEVICES,
    ROW,
    device_axis,
    draw_heat,
)
from gpu_flows.analytics.figures.theme import (
    INK,
    MOST_MARKS,
    WARNING,
    Drawing,
    format_duration,
    job_colour,
    lines_of,
    make_figure,
    name_of,
)
from gpu_flows.analytics.figures.time_axis import TimeAxis, seconds_of
from gpu_flows.analytics.query_runner import QueryResult

NAMED = 0.03  # part of the time that a bar must take to bear the name of its job
LARGEST_SHARE = 0.88  # of a row's height that bars take


def hold_query(most: int) -> str:
    """Return SQL for each hold; for the shares of time in which neighbouring devices were held if there are
    more holds than `most`. One query, because each costs a process."""
    return f"""
-- What did each job hold, and when? Of a large history: which part of the devices was held in each interval?
with {NUMBERED_DEVICES},
holds as materialized (
    select
        numbered.position, coalesce(numbered.device, holds.node) as device,
        holds.job_id, jobs.name, jobs.user_name, holds.attempt,
        greatest(holds.since, $since) as since, least(holds.until, $until) as until,
        coalesce(attempt_ends.outcome, 'running') as outcome
    from device_holds as holds
    join jobs using (job_id)
    left join numbered on numbered.device_id = holds.device_id
    left join attempt_ends on attempt_ends.job_id = holds.job_id and attempt_ends.attempt = holds.attempt
    where holds.pool = $pool and holds.since < $until and holds.until > $since
),
size as materialized (select count(*) > {most} as is_large from holds),
held as (select row, since, until from device_held join placed using (device_id) where pool = $pool),
{cut("held", BINS)},
shares as (
    select row as position, device, devices, time as since,
        100 * sum(within_s) / (any_value(bin_s) * devices) as held_percent
    from rows left join pieces using (row)
    group by row, device, devices, time
),
found as (
    from holds where not (select is_large from size)
    union all by name
    from shares where (select is_large from size)
)
select device, job_id, name, user_name, attempt, since, until, outcome, devices, held_percent
from found
order by position, since, job_id
"""


class Hold(NamedTuple):
    """A device in the hands of one attempt. Times are those of a query, or seconds."""

    device: str
    job_id: str
    name: str
    user_name: str
    attempt: int
    since: Any
    until: Any
    outcome: str


def draw_gantt(found: QueryResult) -> Drawing | None:
    """Draw every hold as a bar, or a heat map where there are too many."""
    if found.rows and found.rows[0][1] is None:  # no job: shares
        return draw_shares([(row[0], row[8], row[5], row[9]) for row in found.rows])
    return draw_holds([Hold(*row[: len(Hold._fields)]) for row in found.rows])


def draw_holds(holds: Sequence[Hold], devices: Iterable[str] = ()) -> Drawing | None:
    """Draw every hold as a bar. `devices` are drawn even if no job held them."""
    if not holds:
        return None
    rows = list(dict.fromkeys([*devices, *(hold.device for hold in holds)]))
    begins = [seconds_of(hold.since) for hold in holds]
    ends = [seconds_of(hold.until) for hold in holds]
    axis = TimeAxis(min(begins), max(ends))
    places = _find_places(holds, begins, ends)
    bars = go.Bar(
        orientation="h",
        y=[name_of(hold.device) for hold in holds],
        base=[axis.at(begin) for begin in begins],
        x=[axis.length(end - begin) for begin, end in zip(begins, ends, strict=True)],
        offset=[offset for offset, _ in places],
        width=[width for _, width in places],
        marker={"color": [job_colour(hold.job_id) for hold in holds], "line": {"width": 0}},
        text=_names_on_bars(holds, begins, ends, axis),
        textposition="inside",
        textangle=0,
        insidetextanchor="middle",
        textfont={"color": INK, "size": 11},
        customdata=[hold.job_id for hold in holds],
        hovertext=[_describe(*each, axis) for each in zip(holds, begins, ends, strict=True)],
        hoverinfo="text",
        showlegend=False,
    )
    stopped = [n for n, hold in enumerate(holds) if hold.outcome not in ("completed", "running")]
    ticks = go.Scatter(
        mode="markers",
        x=[axis.at(ends[n]) for n in stopped],
        y=[name_of(holds[n].device) for n in stopped],
        marker={"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": WARNING}},
        hoverinfo="skip",
        name="stopped before its end",
    )
    figure = make_figure(
        [bars, *([ticks] if stopped else [])],
        height=MARGINS + ROW * max(len(rows), 4),
        barmode="overlay",
        showlegend=bool(stopped),
    )
    figure.update_xaxes(**axis.layout())
    figure.update_yaxes(**device_axis(rows))
    figure.update_layout(uniformtext={"minsize": 9, "mode": "hide"}, bargap=0.1)
    jobs = len({hold.job_id for hold in holds})
    return Drawing(
        figure, f"{jobs:,} jobs on {len({h.device for h in holds}):,} devices, a colour for each job"
    )


def _find_places(
    holds: Sequence[Hold], begins: Sequence[float], ends: Sequence[float]
) -> list[tuple[float, float]]:
    """Return the offset and the width of each bar: jobs that share a device lie beside each other."""
    lanes, widths = [0] * len(holds), [LARGEST_SHARE] * len(holds)
    sharing: dict[str, list[int]] = {}  # the holds of each device that overlap, directly or through others
    for number in sorted(range(len(holds)), key=lambda n: (begins[n], ends[n])):
        group = sharing.setdefault(holds[number].device, [])
        if all(ends[other] <= begins[number] for other in group):
            group.clear()
        taken = {lanes[other] for other in group if ends[other] > begins[number]}
        lanes[number] = next(lane for lane in range(len(group) + 1) if lane not in taken)
        group.append(number)
        for other in group:
            widths[other] = LARGEST_SHARE / (1 + max(lanes[each] for each in group))
    return [(lane * width - LARGEST_SHARE / 2, width) for lane, width in zip(lanes, widths, strict=True)]


def _names_on_bars(
    holds: Sequence[Hold], begins: Sequence[float], ends: Sequence[float], axis: TimeAxis
) -> list[str]:
    shortest = NAMED * (axis.last - axis.first)
    return [
        name_of(hold.name or hold.job_id, 18) if end - begin > shortest else ""
        for hold, begin, end in zip(holds, begins, ends, strict=True)
    ]


def _describe(hold: Hold, begin: float, end: float, axis: TimeAxis) -> str:
    times = f"{axis.label(begin)} to {axis.label(end)} ({format_duration(end - begin)})"
    return lines_of(
        hold.name or hold.job_id,
        hold.user_name,
        hold.device,
        times,
        f"attempt {hold.attempt}, {hold.outcome}",
    )


def draw_shares(rows: Sequence[tuple[Any, ...]]) -> Drawing | None:
    """Draw (device, devices, time, percent): which part of neighbouring devices was held over time."""
    drawing = draw_heat(rows, "held")
    if drawing is None:
        return None
    most = max(devices for _, devices, _, _ in rows)
    what = f"{most} neighbouring devices" if most > 1 else "the time"
    return Drawing(
        drawing.figure,
        f"More than {MOST_MARKS:,} holds: the stronger, the more of {what} jobs held. {drawing.subtitle}",
    )


CHART = Chart(
    key="gantt",
    title="Devices over time",
    meaning="Each row is a device, or several neighbouring ones: what jobs held, and when; gaps are idle.",
    sql=hold_query(MOST_MARKS),
    draw=draw_gantt,
    when_empty="No job held a device in this time.",
    most_rows=MOST_ROWS * BINS,
)

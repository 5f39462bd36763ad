"""How much energy the jobs of each user took, by the power that NVML reported."""

from __future__ import annotations

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.named_bars import draw_named_bars
from gpu_flows.analytics.figures.theme import COLOURS, Drawing
from gpu_flows.analytics.query_runner import QueryResult

_ENERGY = """
-- Whose jobs took how much energy?
select coalesce(nullif(energy.user_name, ''), 'no user') as user_name,
    count(distinct job_id) as jobs, sum(energy_wh) / 1000 as energy_kwh
from energy join job_history as jobs using (job_id)
where energy.pool = $pool and energy_wh is not null
    and jobs.first_started < $until and coalesce(jobs.ended, $until) > $since
group by all
order by energy_kwh desc, user_name
"""


def draw_energy(found: QueryResult) -> Drawing | None:
    """Draw a bar for each user, the largest on top."""
    rows = [(user, energy) for user, _, energy in found.rows]
    remark = ", over the whole of the jobs that ran in this time"
    return draw_named_bars(rows, "kWh", lambda own, _: f"{own:,.3g} kWh", COLOURS[2], remark)


CHART = Chart(
    key="energy",
    title="Energy by user",
    meaning="The energy that devices took while jobs held them, from their readings of power.",
    sql=_ENERGY,
    draw=draw_energy,
    when_empty="No power was read: NVML does not report it here, or the devices are simulated.",
    views=("energy",),
)

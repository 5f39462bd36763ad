"""The charts that `--charts` writes. The module that draws them is imported only where they are wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_flows.schedulers.simulation.simulator import Simulation
from gpu_flows.schedulers.simulation.summary import DeviceUse, Floats, turnarounds_s


@dataclass(frozen=True, slots=True)
class ChartData:
    turnarounds: Floats
    use: DeviceUse
    gantt: str  # drawn already, because it needs the whole simulation


def collect_chart_data(label: str, simulation: Simulation, use: DeviceUse) -> ChartData:
    from gpu_flows.analytics.charts.gantt_chart import draw_gantt_chart

    return ChartData(turnarounds_s(simulation), use, draw_gantt_chart(label, simulation, use))


def write_charts(folder: Path, data: Mapping[str, ChartData]) -> None:
    """Write a chart of turnarounds and one of utilization, and a Gantt chart for each policy."""
    from gpu_flows.analytics.charts.line_charts import draw_turnaround_chart
    from gpu_flows.analytics.charts.utilization_chart import draw_utilization_chart

    drawn = {
        "turnaround": draw_turnaround_chart({label: policy.turnarounds for label, policy in data.items()}),
        "utilization": draw_utilization_chart({label: policy.use for label, policy in data.items()}),
    }
    for number, (label, policy) in enumerate(data.items(), start=1):
        drawn[f"gantt-{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', label)}"] = policy.gantt
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")

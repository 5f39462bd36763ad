"""The page of figures that `--charts` writes. What draws them is imported only where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_flows.common.files import write_atomically
from gpu_flows.schedulers.simulation.simulator import Simulation
from gpu_flows.schedulers.simulation.summary import DeviceUse, Floats, turnarounds_s

if TYPE_CHECKING:
    from gpu_flows.analytics.figures.chart import Drawn

PAGE = "simulation.html"


@dataclass(frozen=True, slots=True)
class ChartData:
    turnarounds: Floats
    use: DeviceUse
    gantt: Drawn  # drawn already, because it needs the whole simulation


def collect_chart_data(label: str, simulation: Simulation, use: DeviceUse) -> ChartData:
    from gpu_flows.analytics.figures.simulated import gantt_of

    return ChartData(turnarounds_s(simulation), use, gantt_of(label, simulation, use))


def write_charts(folder: Path, data: Mapping[str, ChartData], remark: str) -> None:
    """Write one page with the turnarounds and the utilization of all policies, and a Gantt chart of each."""
    from gpu_flows.analytics.figures.simulated import turnaround_of, utilization_of
    from gpu_flows.analytics.pages import render_figures

    figures = [
        turnaround_of({label: policy.turnarounds for label, policy in data.items()}),
        utilization_of({label: policy.use for label, policy in data.items()}),
        *(
            replace(policy.gantt, key=f"gantt-{number}")
            for number, policy in enumerate(data.values(), start=1)
        ),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PAGE, render_figures("Simulation", figures, remark))

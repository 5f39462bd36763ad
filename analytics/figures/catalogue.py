"""Every figure of the history, in the order of the report."""

from __future__ import annotations

from gpu_flows.analytics.figures import (
    energy,
    eta,
    fragmentation,
    gantt,
    gpu_hours,
    makespan,
    preemption,
    queue,
    turnaround,
    user_turnaround,
    utilization,
)

CHARTS = (
    gantt.CHART,
    utilization.CHART,
    queue.CHART,
    turnaround.CHART,
    user_turnaround.CHART,
    makespan.CHART,
    fragmentation.CHART,
    gpu_hours.CHART,
    energy.CHART,
    preemption.CHART,
    eta.CHART,
)

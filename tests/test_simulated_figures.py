"""The figures of simulations, of predictions and of trainings show what happened, and stay small."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from figure_helpers import EVIL, as_json, assert_harmless

from gpu_flows.analytics.figures.calibration import MEMORY, MOST_DOTS, calibration_of
from gpu_flows.analytics.figures.chart import Drawn
from gpu_flows.analytics.figures.heat import MOST_ROWS
from gpu_flows.analytics.figures.intervals import draw_groups, draw_lines
from gpu_flows.analytics.figures.simulated import POINTS, gantt_of, turnaround_of, utilization_of
from gpu_flows.analytics.figures.theme import COLOURS, GREY, Drawing
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import device_use, turnarounds_s
from gpu_flows.schedulers.workload import Arrival


def run(*arrivals: Arrival, cluster: str = "2x2", policy: str = "fifo") -> Simulation:
    return simulate(arrivals, declare(cluster), make_policy(policy))


def many_jobs(jobs: int, gpus: int = 1) -> list[Arrival]:
    return [Arrival(Job(f"{n:05}", n * 20.0, gpus), 30.0 + n % 50) for n in range(jobs)]


def drawn(figure: Drawn) -> Drawing:
    assert figure.drawing is not None, figure.missing
    as_json(figure.drawing)
    return figure.drawing


def test_a_line_for_each_policy_ends_at_all_jobs() -> None:
    figure = turnaround_of({"fifo": np.array([7200.0, 1.0, 60.0]), "srtf": np.array([5.0])})
    fifo, srtf = drawn(figure).figure.data
    assert (list(fifo.x), list(fifo.y)) == ([1, 60, 7200], pytest.approx([100 / 3, 200 / 3, 100]))
    assert (fifo.name, srtf.name) == ("fifo (3)", "srtf (1)")
    assert fifo.line.color != srtf.line.color
    assert figure.data.rows[1] == ("srtf", 1, 5.0, 5.0, 5.0, 5.0)


def test_utilization_follows_the_devices() -> None:
    simulation = run(Arrival(Job("a", 0.0, 2), 100.0), Arrival(Job("b", 0.0, 1), 50.0))
    [strip] = drawn(utilization_of({"fifo": device_use(simulation)})).figure.data
    assert set(strip.y) == {75, 50}  # three of four devices, then two


def test_each_policy_has_a_strip_of_its_own() -> None:
    use = device_use(run(*many_jobs(30)))
    figure = drawn(utilization_of({f"policy-{number}": use for number in range(11)})).figure
    assert len({strip.yaxis for strip in figure.data}) == 11
    assert [each.text for each in figure.layout.annotations] == [f"policy-{number}" for number in range(11)]
    domains = [figure.layout[f"yaxis{number or ''}"].domain for number in [0, *range(2, 12)]]
    assert all(above[0] > below[1] for above, below in pairwise(domains))


def test_every_attempt_is_a_bar_with_a_hover_text() -> None:
    long = Arrival(Job("long", 0.0, 2, user="ann"), 7200.0)
    simulation = run(long, Arrival(Job("short", 60.0, 1), 60.0), cluster="1x2", policy="srtf")
    bars, stopped = drawn(gantt_of("srtf", simulation)).figure.data
    assert list(bars.y) == [f"node-1 / {device}" for device in (0, 1, 0, 0, 1)]
    assert bars.hovertext[0] == "long<br>ann<br>node-1 / 0<br>0 to 1m (1m)<br>attempt 1, preempted"
    assert bars.hovertext[2] == "short<br>node-1 / 0<br>1m to 2m (1m)<br>attempt 1, completed"
    assert len(stopped.x) == 2  # on both devices


def test_devices_without_a_job_are_rows_too() -> None:
    figure = drawn(gantt_of("fifo", run(Arrival(Job("a"), 5.0), cluster="3x2"))).figure
    assert len(figure.layout.yaxis.categoryarray) == 6


def test_many_jobs_on_many_devices_stay_small() -> None:
    simulation = run(*many_jobs(5_000, gpus=3), cluster="100x8")
    gantt = drawn(gantt_of("fifo", simulation))
    [heat] = gantt.figure.data
    assert len(heat.y) <= MOST_ROWS
    assert "of 13 neighbouring devices jobs held" in gantt.subtitle
    [line] = drawn(turnaround_of({"fifo": turnarounds_s(simulation)})).figure.data
    assert len(line.x) == POINTS
    assert (line.x[-1], line.y[-1]) == (max(turnarounds_s(simulation)), 100)


def test_shares_show_how_many_devices_were_held() -> None:
    jobs = [Arrival(Job(f"{n:03}", 0.0, 4), 100.0) for n in range(50)]  # half of 100 nodes with 4 devices
    [heat] = drawn(gantt_of("fifo", run(*jobs, cluster="100x4"))).figure.data
    assert {share for row in heat.z for share in row} <= {0.0, 57.1, 100.0}
    assert [row[0] for row in heat.z].count(100.0) == 200 // 7


def test_names_are_harmless() -> None:
    simulation = run(Arrival(Job(EVIL, 0.0, 2, user=EVIL), 100_000.0))
    assert_harmless(drawn(gantt_of(EVIL, simulation)))
    assert_harmless(drawn(turnaround_of({EVIL: turnarounds_s(simulation)})))
    assert_harmless(drawn(utilization_of({EVIL: device_use(simulation)})))


def test_an_empty_figure_says_why() -> None:
    nothing = run(Arrival(Job("wide", 0.0, 99), 5.0))
    assert gantt_of("fifo", nothing).missing == "No job ran."
    assert utilization_of({"fifo": device_use(nothing)}).missing == "No job ran."
    assert turnaround_of({"fifo": turnarounds_s(nothing)}).missing == "No job finished."
    assert turnaround_of({}).missing == "No job finished."
    assert calibration_of("memory", "Memory", {"features": []}, MEMORY).missing


def test_jobs_that_take_no_time_can_be_drawn() -> None:
    simulation = run(Arrival(Job("a", 5.0), 0.0), Arrival(Job("b", 5.0), 0.0))
    drawn(gantt_of("fifo", simulation))
    assert utilization_of({"fifo": device_use(simulation)}).missing
    drawn(turnaround_of({"fifo": np.array([0.0, 0.0, 3.0])}))


# Predictions


def test_calibration_marks_jobs_that_needed_more_than_their_bound() -> None:
    points = {EVIL: [(1000.0, 1200.0, 1100.0), (1000.0, 1200.0, 1300.0), (0.0, 1.0, 1.0)]}
    drawing = drawn(calibration_of("memory", "Memory", points, MEMORY))
    _, dots = drawing.figure.data
    assert list(dots.marker.line.width) == [0, 2]
    assert dots.hovertext[1] == "predicted 1000 MiB, at most 1.17 GiB; measured 1.27 GiB"
    assert_harmless(drawing)


def test_calibration_of_many_jobs_stays_small() -> None:
    points = {"features": [(1.0, 2.0, 1.0)] * 10 * MOST_DOTS}
    drawing = drawn(calibration_of("memory", "Memory", points, MEMORY))
    assert len(drawing.figure.data[1].x) == MOST_DOTS
    assert "every n-th" in drawing.subtitle


# Studies


def test_intervals_of_groups_and_of_lines() -> None:
    groups = draw_groups(
        {"batch": {"fifo": (900.0, 20.0), "dally, tuned": (700.0, 10.0)}, EVIL: {"rl": (1.0, 0.0)}},
        looked_at=("dally,",),
    )
    dots, means = groups.figure.data
    assert list(dots.marker.color) == [GREY, COLOURS[0], GREY]
    assert (list(dots.x), list(dots.error_x.array), list(dots.y)) == ([900, 700, 1], [20, 10, 0], [1, 2, 4])
    assert (list(means.x), means.text[0].strip()) == ([920, 710, 1], "900")
    assert list(groups.figure.layout.yaxis.ticktext[:3]) == ["<b>batch</b>", "fifo", "dally, tuned"]
    assert_harmless(groups)
    lines = draw_lines({"fifo": [(0.5, 10.0, 1.0), (1.0, 20.0, 2.0)]}, "load")
    [line] = lines.figure.data
    assert (list(line.x), list(line.y), list(line.error_y.array)) == ([0.5, 1.0], [10, 20], [1, 2])

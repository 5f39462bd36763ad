"""Charts: valid SVG that shows what happened, and stays small for large simulations."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from gpu_flows.analytics.charts.axes import LinearAxis, format_duration
from gpu_flows.analytics.charts.calibration_chart import MEMORY, MOST_DOTS, Point, draw_calibration_chart
from gpu_flows.analytics.charts.gantt_chart import SHADES, _find_runs, draw_gantt_chart
from gpu_flows.analytics.charts.layout import PLOT_HEIGHT, TOP
from gpu_flows.analytics.charts.line_charts import draw_turnaround_chart
from gpu_flows.analytics.charts.utilization_chart import STRIP, draw_utilization_chart
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import device_use, turnarounds_s
from gpu_flows.schedulers.workload import Arrival

EVIL = "<script>alert('1')</script>&\"\x1b[2J\u202e"
SVG = "{http://www.w3.org/2000/svg}"


def run(*arrivals: Arrival, cluster: str = "2x2", policy: str = "fifo") -> Simulation:
    return simulate(arrivals, declare(cluster), make_policy(policy))


def many_jobs(jobs: int, gpus: int = 1) -> list[Arrival]:
    return [Arrival(Job(f"{n:05}", n * 20.0, gpus), 30.0 + n % 50) for n in range(jobs)]


def parse(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {"svg", "title", "rect", "path", "text"}
    assert not re.search(r"nan|inf(?!o)", svg.partition("<rect")[2].partition("<text")[0])
    return root


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in parse(svg).iter(f"{SVG}text")]


def test_a_line_for_each_policy_with_its_name() -> None:
    drawn = draw_turnaround_chart({"fifo": np.array([1.0, 60.0, 7200.0]), "srtf": np.array([5.0])})
    assert {"fifo", "srtf", "0%", "100%", "1m", "1h", "turnaround (logarithmic)"} <= set(texts(drawn))
    lines = [each for each in parse(drawn).iter(f"{SVG}path") if each.get("fill") == "none"]
    assert len({each.get("stroke") for each in lines}) == 2


def test_more_policies_than_colours_are_dashed() -> None:
    drawn = draw_turnaround_chart({f"p{n}": np.array([1.0 + n, 2.0]) for n in range(20)})
    styles = {(each.get("stroke"), each.get("stroke-dasharray")) for each in parse(drawn).iter(f"{SVG}path")}
    assert len(styles) >= 20


def test_utilization_follows_the_devices() -> None:
    simulation = run(Arrival(Job("a", 0.0, 2), 100.0), Arrival(Job("b", 0.0, 1), 50.0))
    drawn = draw_utilization_chart({"fifo": device_use(simulation)})
    [line] = [each for each in parse(drawn).iter(f"{SVG}path") if each.get("stroke-linejoin")]
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line.get("d") or "")]
    bottom, top = TOP + PLOT_HEIGHT, TOP
    levels = sorted({round((bottom - y) / (bottom - top), 2) for y in heights})
    assert levels == [0.0, 0.5, 0.75]  # three of four devices, then two, then none


def test_utilization_of_many_policies_does_not_overlap() -> None:
    use = device_use(run(*many_jobs(30)))
    drawn = draw_utilization_chart({f"policy-{number}": use for number in range(11)})
    assert {f"policy-{number}" for number in range(11)} <= set(texts(drawn))
    lines = [each.get("d") or "" for each in parse(drawn).iter(f"{SVG}path") if each.get("stroke-linejoin")]
    spans = [[float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line)] for line in lines]
    assert len(spans) == 11
    assert all(max(above) < min(below) for above, below in pairwise(spans))
    assert all(max(span) - min(span) <= STRIP for span in spans)


def test_every_attempt_is_a_bar_with_a_tip() -> None:
    long = Arrival(Job("long", 0.0, 2, user="ann"), 7200.0)
    simulation = run(long, Arrival(Job("short", 60.0, 2), 60.0), cluster="1x2", policy="srtf")
    drawn = draw_gantt_chart("srtf", simulation)
    tips = [each.text for each in parse(drawn).iter(f"{SVG}title")]
    assert tips[1:] == [
        "long, ann, 2 devices, 0 to 1m, attempt 1, preempted",
        "short, 2 devices, 1m to 2m, attempt 1, completed",
        "long, ann, 2 devices, 2m to 2h 1m, attempt 2, completed",
    ]
    assert "node-1" in texts(drawn)
    assert any("dark end" in each for each in texts(drawn))


def test_devices_of_a_job_that_are_not_neighbours_are_several_bars() -> None:
    assert list(_find_runs([3, 4, 5, 9])) == [(3, 3), (9, 1)]
    assert list(_find_runs([2])) == [(2, 1)]


def test_many_jobs_on_many_devices_stay_small() -> None:
    simulation = run(*many_jobs(5_000, gpus=3), cluster="100x8")
    drawn = draw_gantt_chart("fifo", simulation)
    assert len(drawn) < 200_000
    assert any("of 10 neighbouring devices were held" in each for each in texts(drawn))
    assert len(draw_turnaround_chart({"fifo": turnarounds_s(simulation)})) < 30_000
    assert len(draw_utilization_chart({"fifo": device_use(simulation)})) < 30_000


def test_shades_show_how_many_devices_were_held() -> None:
    jobs = [Arrival(Job(f"{n:03}", 0.0, 4), 100.0) for n in range(50)]  # half of 100 nodes with 4 devices
    drawn = draw_gantt_chart("fifo", run(*jobs, cluster="100x4"))
    colours = [each.get("fill") for each in parse(drawn).iter(f"{SVG}path") if each.get("shape-rendering")]
    assert colours == [SHADES[0], SHADES[-1]]


@pytest.mark.parametrize("seconds", [0.0001, 0.5, 1.5, 7, 400, 90_000, 3e7])
def test_axes_have_some_marks_and_not_too_many(seconds: float) -> None:
    for axis in (LinearAxis(0.0, seconds), LinearAxis(seconds, 3 * seconds)):
        marks = list(axis.ticks())
        assert 2 <= len(marks) <= 12
        assert len({label for _, label in marks}) == len(marks)
        assert all(0 <= axis.at(value) <= 1 + 1e-9 for value, _ in marks)


def test_durations_have_at_most_two_units() -> None:
    expected = {0: "0", 0.25: "0.25s", 90: "1m 30s", 3600: "1h", 129_600: "1d 12h", 1e8: "1,157d 9h"}
    assert {seconds: format_duration(seconds) for seconds in expected} == expected


def test_names_are_escaped() -> None:
    simulation = run(Arrival(Job(EVIL, 0.0, 2, user=EVIL), 100_000.0))
    for drawn in (
        draw_gantt_chart(EVIL, simulation),
        draw_turnaround_chart({EVIL: turnarounds_s(simulation)}),
        draw_utilization_chart({EVIL: device_use(simulation)}),
    ):
        assert any("<script>" in each for each in texts(drawn))
        assert "\x1b" not in drawn


def test_an_empty_chart_says_why() -> None:
    nothing = run(Arrival(Job("wide", 0.0, 99), 5.0))
    assert "No job ran." in texts(draw_gantt_chart("fifo", nothing))
    assert "No job ran." in texts(draw_utilization_chart({"fifo": device_use(nothing)}))
    assert "No job finished." in texts(draw_turnaround_chart({"fifo": turnarounds_s(nothing)}))
    assert "No job finished." in texts(draw_turnaround_chart({}))


def test_jobs_that_take_no_time_can_be_drawn() -> None:
    simulation = run(Arrival(Job("a", 5.0), 0.0), Arrival(Job("b", 5.0), 0.0))
    parse(draw_gantt_chart("fifo", simulation))
    parse(draw_utilization_chart({"fifo": device_use(simulation)}))
    parse(draw_turnaround_chart({"fifo": np.array([0.0, 0.0, 3.0])}))


# --- calibration ---


def test_calibration_marks_jobs_that_needed_more_than_their_bound() -> None:
    svg = draw_calibration_chart("Memory", {EVIL: [Point(1000, 1200, 1100), Point(1000, 1200, 1300)]}, MEMORY)
    parse(svg)
    assert svg.count('stroke="#cf222e"') == 1
    assert "predicted 1000 MiB, at most 1.17 GiB; measured 1.27 GiB" in svg


def test_calibration_of_many_jobs_stays_small_and_of_none_says_so() -> None:
    svg = draw_calibration_chart("Memory", {"features": [Point(1, 2, 1)] * 10 * MOST_DOTS}, MEMORY)
    assert MOST_DOTS <= svg.count("<rect") < 2 * MOST_DOTS
    for points in ({}, {"features": []}):
        assert "No job with a prediction" in draw_calibration_chart("Memory", points, MEMORY)

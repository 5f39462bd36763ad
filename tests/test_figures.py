"""The figures of the history, each from rows with known content."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from figure_helpers import EVIL, as_json, assert_harmless, result

from gpu_flows.analytics.figures.energy import draw_energy
from gpu_flows.analytics.figures.eta import draw_eta
from gpu_flows.analytics.figures.fragmentation import draw_fragmentation
from gpu_flows.analytics.figures.gantt import Hold, draw_gantt, draw_holds, draw_shares
from gpu_flows.analytics.figures.gpu_hours import draw_gpu_hours
from gpu_flows.analytics.figures.makespan import draw_makespan
from gpu_flows.analytics.figures.preemption import draw_preemption
from gpu_flows.analytics.figures.queue import draw_queue
from gpu_flows.analytics.figures.theme import (
    COLOURS,
    MOST_NAMES,
    Drawing,
    format_duration,
    job_colour,
    line_styles,
    name_of,
)
from gpu_flows.analytics.figures.time_axis import TimeAxis
from gpu_flows.analytics.figures.turnaround import draw_turnaround_by_policy
from gpu_flows.analytics.figures.user_turnaround import draw_turnaround_by_user
from gpu_flows.analytics.figures.utilization import draw_utilization

DAY = datetime(2026, 5, 4, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return DAY + timedelta(seconds=seconds)


def hold(device: str, job: str, since: float, until: float, outcome: str = "completed") -> Hold:
    return Hold(device, job, job, "ann", 1, after(since), after(until), outcome)


# The theme


def test_durations_have_at_most_two_units() -> None:
    expected = {0: "0", 0.25: "0.25s", 90: "1m 30s", 3600: "1h", 129_600: "1d 12h", -90: "-1m 30s"}
    assert {seconds: format_duration(seconds) for seconds in expected} == expected


def test_names_are_only_text_and_not_too_long() -> None:
    assert name_of(EVIL) == "&lt;script&gt;alert('1')&lt;/script&gt;&amp;\"·[2J·%{x}"
    assert name_of("x" * 100, 10) == "x" * 9 + "…"


def test_colours_stay_the_same_and_no_two_lines_look_alike() -> None:
    assert job_colour("a") == job_colour("a")
    assert line_styles(["srtf"])["srtf"] == line_styles(["tiresias", "own", "srtf", "fifo"])["srtf"]
    many = line_styles([f"policy-{number}" for number in range(3 * len(COLOURS))])
    assert len({(style["color"], style["dash"]) for style in many.values()}) == len(many)


def test_times_are_dates_for_real_pools_and_durations_for_simulations() -> None:
    real = TimeAxis(DAY.timestamp(), DAY.timestamp() + 60)
    assert str(real.at(DAY.timestamp() + 1.5)).endswith("01.500")
    assert real.length(2) == 2000
    simulated = TimeAxis(0, 36_000)
    assert simulated.at(7200) == 2
    assert simulated.layout()["title"]["text"] == "hours of the simulation"


def test_bars_do_not_overlap_when_summer_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        end = datetime(2026, 10, 25, 3, tzinfo=UTC).timestamp()  # summer time ended two hours before
        axis = TimeAxis(end - 4 * 3600, end)
        places = [axis.at(end - hours * 3600) for hours in (4, 3, 2, 1, 0)]
        assert [str(place)[11:13] for place in places] == ["00", "01", "02", "03", "04"]
        assert axis.layout()["title"]["text"] == "UTC+01:00"
        assert axis.label(end - 7200) == "2026-10-25 02:00:00"
        assert TimeAxis(end - 60, end).layout()["title"]["text"] == ""
    finally:
        monkeypatch.undo()
        time.tzset()


# Devices over time


def test_every_hold_is_a_bar_in_the_colour_of_its_job() -> None:
    holds = [hold("n0 / 0", "a", 0, 60), hold("n0 / 1", "a", 0, 60), hold("n0 / 0", "b", 60, 90, "preempted")]
    drawing = draw_gantt(result("", *holds))
    assert drawing is not None
    bars, stopped = as_json(drawing)["data"]
    assert bars["y"] == ["n0 / 0", "n0 / 1", "n0 / 0"]
    assert bars["x"] == [60_000, 60_000, 30_000]
    assert bars["marker"]["color"][0] == bars["marker"]["color"][1] == job_colour("a")
    assert bars["customdata"] == ["a", "a", "b"]
    assert bars["hovertext"][2].startswith("b<br>ann<br>n0 / 0<br>")
    assert bars["hovertext"][2].endswith("(30s)<br>attempt 1, preempted")
    assert (len(stopped["x"]), stopped["y"]) == (1, ["n0 / 0"])
    assert drawing.subtitle == "2 jobs on 2 devices, a colour for each job"


def test_jobs_that_share_a_device_lie_beside_each_other() -> None:
    drawing = draw_holds([hold("d", "a", 0, 60), hold("d", "b", 30, 90), hold("d", "c", 100, 110)])
    assert drawing is not None
    bars = drawing.figure.data[0]
    assert bars.width[0] == bars.width[1] == bars.width[2] / 2
    assert bars.offset[0] + bars.width[0] == pytest.approx(bars.offset[1])


def test_names_of_jobs_are_harmless() -> None:
    drawing = draw_holds([Hold(EVIL, EVIL, EVIL, EVIL, 1, after(0), after(9), EVIL)])
    assert drawing is not None
    assert_harmless(drawing)


def test_shares_and_utilization_are_heat_maps_of_devices_by_time() -> None:
    rows = [("n0 / 0", 2, after(0), 50.0), ("n0 / 0", 2, after(30), 100.0), ("n0 / 2", 1, None, None)]

    def draw_each(rows: list[Any]) -> list[Drawing | None]:
        return [draw_shares(rows), draw_utilization(result("device devices time percent", *rows))]

    for drawing in draw_each(rows):
        assert drawing is not None
        [heat] = as_json(drawing)["data"]
        assert heat["y"] == ["n0 / 0", "n0 / 2"]
        assert heat["z"] == [[50, 100], [None, None]]
        assert "intervals of 30s" in drawing.subtitle
    assert draw_each(rows[2:]) == [None, None]


# Waiting, turnaround, bounds


def test_queue_is_a_stair_of_waiting_and_one_of_running_jobs() -> None:
    drawing = draw_queue(result("time waiting running changes", (after(0), 3, 0, 0), (after(60), 1, 2, 1)))
    assert drawing is not None
    waiting, running = drawing.figure.data
    assert (list(waiting.y), list(running.y)) == ([3, 1], [0, 2])
    assert waiting.line.shape == "hv"


def test_a_curve_for_each_policy_with_the_number_of_jobs() -> None:
    rows = [("fifo", 9, 0, 0.0), ("fifo", 9, 100, 60.0), (EVIL, 4, 0, 5.0), (EVIL, 4, 100, 50.0)]
    drawing = draw_turnaround_by_policy(result("policy jobs percent turnaround_s", *rows))
    assert drawing is not None
    curve = drawing.figure.data[0]
    assert curve.name == "fifo (9)"
    assert (list(curve.x), list(curve.y)) == ([5.0, 60.0], [0, 100])  # 0 has no place on a logarithmic axis
    assert_harmless(drawing)


def test_a_box_for_each_user() -> None:
    rows = [(EVIL, 40, 1.0, 2.0, 3.0, 4.0, 5.0), (None, 2, 1.0, 1.0, 1.0, 1.0, 1.0)]
    drawing = draw_turnaround_by_user(result("user jobs p05 p25 p50 p75 p95", *rows))
    assert drawing is not None
    [box] = drawing.figure.data
    assert (list(box.median), list(box.upperfence)) == ([3.0, 1.0], [5.0, 1.0])
    assert box.y[1] == "no user (2)"
    assert_harmless(drawing)


def test_makespan_is_compared_with_the_bound_of_the_recorded_jobs() -> None:
    # Two jobs of 100 s for two devices each, one after the other, with 50 s between them for nothing.
    devices = [("d0", "n0", 0, "GTX", 11_000), ("d1", "n0", 1, "GTX", 11_000)]
    jobs = [("a", 0.0, 100.0, 2, 100.0, 0, devices), ("b", 0.0, 250.0, 2, 100.0, 0, None)]
    drawing = draw_makespan(result("", *jobs))
    assert drawing is not None
    bound, measured = drawing.figure.data
    assert list(measured.text) == ["4m 10s", "2m 55s"]
    assert list(bound.text) == ["3m 20s", "2m 30s"]
    assert list(bound.x) == pytest.approx([200 / 250, 150 / 175])
    assert "makespan 25.0%" in drawing.subtitle
    assert draw_makespan(result("")) is None
    assert draw_makespan(result("", (*jobs[0][:-1], None))) is None


# Use and its costs


def test_idle_devices_add_up() -> None:
    rows = [(after(0), 2.0, 3600.0), (after(1800), 0.0, 0.0)]
    drawing = draw_fragmentation(result("time idle_devices idle_device_s", *rows))
    assert drawing is not None
    assert list(drawing.figure.data[0].y) == [2.0, 0.0, 0.0]
    assert drawing.subtitle.startswith("1 GPU-hours in all")


@pytest.mark.parametrize("draw", [draw_gpu_hours, draw_energy])
def test_bars_of_users_end_with_all_others(draw: type) -> None:
    rows = [(EVIL, 1, 50.0), *((f"user-{n}", 1, 1.0) for n in range(MOST_NAMES + 4))]
    drawing = draw(result("user_name jobs amount", *rows))
    [bars] = drawing.figure.data
    assert len(bars.y) == MOST_NAMES + 1
    assert (bars.y[-1], bars.x[-1]) == ("5 others", 5.0)
    assert sum(bars.x) == sum(amount for *_, amount in rows)
    assert_harmless(drawing)
    assert draw(result("user_name jobs amount")) is None


def test_costs_of_stops_are_stacked() -> None:
    columns = "kind stops stopping_s restart_s lost_s waited_s lost_gpu_hours"
    drawing = draw_preemption(result(columns, ("preempted", 4, 2.0, 5.0, None, 60.0, None)))
    assert drawing is not None
    assert [list(bar.x) for bar in drawing.figure.data] == [[2.0], [5.0], [0]]
    assert drawing.figure.layout.barmode == "stack"
    assert drawing.figure.data[0].y == ("preempted (4)",)


def test_errors_of_etas_are_a_line_in_a_band() -> None:
    columns = "horizon_s estimates p10_error_s median_error_s p90_error_s covered_percent"
    rows = [(60.0, 10, -5.0, 1.0, 9.0, 100.0), (600.0, 30, -50.0, -3.0, 90.0, 80.0)]
    drawing = draw_eta(result(columns, *rows))
    assert drawing is not None
    low, high, middle = drawing.figure.data
    assert [list(each.y) for each in (low, middle, high)] == [[-5, -50], [1, -3], [9, 90]]
    assert drawing.subtitle.startswith("40 estimates of starts and ends; for 85% it was no later")
    assert middle.hovertext[1] == "10m ahead: off by -3s<br>30 estimates, 80% in time"

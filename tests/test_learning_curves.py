"""Learning curves: their facts, the view, the named query and the chart."""

from __future__ import annotations

import math
from pathlib import Path

from analytics_store import Store, T
from figure_helpers import EVIL, assert_harmless

from gpu_flows.analytics import sql_files
from gpu_flows.analytics.facts import LearningStep
from gpu_flows.analytics.figures.learning import draw_learning, learning_of, read_curves
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.cli.rl.curves import record_curves, render_curves
from gpu_flows.schedulers.learning.curve import LearningPoint


def record(folder: Path) -> Store:
    store = Store(folder)
    recorder = store.recorder()
    for seed in (0, 1):
        for step in (1000, 2000, 3000):
            turnaround = 130.0 - step / 100 - 5 * seed
            point = LearningStep(
                "first", seed, step, T + step, step / 1000, turnaround, 100.0, 1.5, None, step / 50
            )
            recorder.write(point)
    recorder.write(LearningStep("second", 0, 500, T + 9000, None, None, None, None, None, 10.0))
    recorder.close()
    return store


def test_points_are_recorded_once_and_compared_with_the_baseline(tmp_path: Path) -> None:
    store = record(tmp_path)
    record(tmp_path)
    assert store.count("learning_points") == 7
    found = store.query(
        "select step, against_baseline_percent, progress from learning_curves"
        " where training = 'first' and seed = 1 order by step"
    )
    assert [(step, round(percent, 6), round(part, 3)) for step, percent, part in found] == [
        (1000, 15.0, 0.333),
        (2000, 5.0, 0.667),
        (3000, -5.0, 1.0),
    ]


def test_the_named_query_has_a_row_for_each_training_and_seed(tmp_path: Path) -> None:
    store = record(tmp_path)
    (query,) = (query for query in sql_files.named_queries() if query.name == "learning")
    found = run_query(store.database, query.sql, {"training": ""})
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert [(row["training"], row["seed"]) for row in rows] == [("second", 0), ("first", 0), ("first", 1)]
    assert rows[0]["last_reward"] is None
    assert (rows[2]["steps"], rows[2]["first_reward"], rows[2]["last_reward"]) == (3000, 1.0, 3.0)
    assert round(rows[2]["against_baseline_percent"], 6) == -5.0
    assert len(run_query(store.database, query.sql, {"training": "second"}).rows) == 1


def test_the_chart_has_a_line_for_each_training_and_seed(tmp_path: Path) -> None:
    curves = read_curves(record(tmp_path).database)
    assert [(step, round(change)) for step, change in curves["first, seed 1"]] == [
        (1000, 15),
        (2000, 5),
        (3000, -5),
    ]
    assert list(curves) == ["first, seed 0", "first, seed 1"]  # the other one has no turnaround
    drawing = draw_learning(curves)
    assert drawing is not None
    first, second = drawing.figure.data
    assert (first.name, second.name) == ("first, seed 0", "first, seed 1")
    assert (list(second.x), [round(change) for change in second.y]) == ([1000, 2000, 3000], [15, 5, -5])
    assert (first.line.color, first.line.dash) != (second.line.color, second.line.dash)


def test_charts_of_one_point_of_nothing_and_of_strange_names() -> None:
    drawing = draw_learning({EVIL: [(5.0, 0.0)]})
    assert drawing is not None
    assert_harmless(drawing)
    assert learning_of({}).missing == "No training has recorded a point."


def test_the_curves_of_a_training_are_recorded_and_drawn(tmp_path: Path) -> None:
    points = [LearningPoint(step, -1.0, 90.0, 100.0, 0.5, math.nan, step / 10) for step in (100, 200)]
    unknown = LearningPoint(300, math.nan, math.nan, math.nan, 0.4, 0.1, 30.0)
    curves = {3: [*points, unknown], 4: []}
    database = tmp_path / "warehouse.duckdb"
    record_curves(curves, "mine", database)
    found = run_query(
        database, "select seed, step, turnaround_s, value_loss from learning_points order by step"
    )
    assert found.rows == [(3, 100, 90.0, None), (3, 200, 90.0, None), (3, 300, None, 0.1)]
    seconds = run_query(database, "select epoch(max(time)) - epoch(min(time)) from learning_points").rows
    assert round(seconds[0][0]) == 20
    page = render_curves(curves)
    assert '"name":"seed 3"' in page
    assert "seed 4" not in page

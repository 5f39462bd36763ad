"""The views and queries about shadows and regrets, on a history with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from analytics_store import Store, T

from gpu_flows.analytics.facts import Regretted, ShadowDecided, ShadowProjected
from gpu_flows.analytics.query_runner import run_query


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store, recorder = Store(tmp_path), None
    recorder = store.recorder()

    def decided(
        at: float, policy: str, shadow: str, agreement: float, took_us: float, skipped: int = 0
    ) -> None:
        same = agreement == 1
        fact = ShadowDecided(T + at, "gpu", policy, shadow, same, same, 1, 0, agreement, took_us, skipped)
        recorder.write(fact)

    for number in range(4):
        decided(number, "fifo", "sjf", 1.0 if number else 0.0, 100.0)
        decided(number, "fifo", "srtf", 0.5, 200.0 + number, skipped=2)
    decided(9, "sjf", "fifo", 1.0, 10.0)
    recorder.write(
        ShadowDecided(T + 10, "gpu", "fifo", "srtf", False, False, 0, 0, 0.0, 9e6, 1, "it did not plan")
    )
    for at, jobs, fifo, sjf in ((0, 10, 100.0, 50.0), (60, 30, 200.0, 190.0)):
        recorder.write(
            ShadowProjected(T + at, "gpu", "fifo", "fifo", jobs, fifo, 1000.0),
            ShadowProjected(T + at, "gpu", "fifo", "sjf", jobs, sjf, 1100.0),
            ShadowProjected(T + at, "gpu", "sjf", "sjf", jobs, sjf, 1100.0),  # after a promotion
        )
    recorder.write(
        Regretted(T, "gpu", T - 86_400, T, "fifo", "srtf", 20.0, 50),
        Regretted(T + 86_400, "gpu", T, T + 86_400, "srtf", "srtf", 0.0, 60),
        Regretted(T, "other", T - 86_400, T, "fifo", "sjf", 1.0, 5),
    )
    recorder.close()
    return store


def test_shadows_are_ranked_beside_each_policy(store: Store) -> None:
    found = run_query(store.database, "shadows", {"pool": "gpu"})
    rows = {(row[1], row[2]): dict(zip(found.columns, row, strict=True)) for row in found.rows}
    assert list(rows) == [("fifo", "sjf"), ("fifo", "srtf"), ("sjf", "fifo")]
    sjf, srtf = rows["fifo", "sjf"], rows["fifo", "srtf"]
    assert (sjf["rank"], sjf["decisions"], sjf["agreement_percent"]) == (1, 4, 75.0)
    # 10 jobs of 50 and 30 of 190 seconds, against 10 of 100 and 30 of 200.
    assert sjf["turnaround_percent"] == pytest.approx(100 * (6200 / 7000 - 1))
    assert sjf["makespan_percent"] == pytest.approx(10.0)
    assert sjf["projections"] == 2
    assert (srtf["rank"], srtf["decisions"], srtf["agreement_percent"]) == (2, 4, 50.0)
    assert (srtf["errors"], srtf["skipped"], srtf["turnaround_percent"]) == (1, 9, None)
    assert (srtf["avg_us"], srtf["p99_us"]) == (201.5, pytest.approx(202.97))
    assert rows["sjf", "fifo"]["agreement_percent"] == 100.0


def test_regrets_are_listed_the_latest_first(store: Store) -> None:
    found = run_query(store.database, "regret", {"pool": "gpu"})
    shown = [(row[4], row[5], row[6], row[7]) for row in found.rows]
    assert shown == [("srtf", "srtf", 0.0, 60), ("fifo", "srtf", 20.0, 50)]
    assert len(run_query(store.database, "regret").rows) == 3

"""What the `regret` flow records and shows, without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from analytics_history import copy_empty_warehouse

from gpu_flows.analytics.whatif import Scenario, WhatIf
from gpu_flows.analytics.whatif.outcomes import Figures
from gpu_flows.deployments import regret
from gpu_flows.deployments.own_pool import OwnPool

OUTCOME = regret.Regret(0.0, 60.0, "fifo", "srtf", 25.0, 4)


def test_a_regret_that_cannot_be_loaded_is_loaded_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regret, "pool_folder", lambda _: tmp_path)
    (tmp_path / "file").touch()
    regret._record(OwnPool("pool", warehouse=tmp_path / "file" / "warehouse.duckdb"), OUTCOME, 100.0)
    monkeypatch.setattr("os.getpid", lambda: 2)
    warehouse = copy_empty_warehouse(tmp_path)
    regret._record(OwnPool("pool", warehouse=warehouse), OUTCOME, 200.0)
    with duckdb.connect(str(warehouse), read_only=True) as connection:
        found = connection.execute("select epoch(time) from regrets order by time").fetchall()
    assert found == [(100,), (200,)]


def test_an_error_of_a_policy_stays_in_its_cell() -> None:
    figures = Figures(1, 1, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0, 0)
    real = Scenario("fifo", 1, figures, {}, [], [])
    broken = replace(real, label="mine", policy_error="Oh | no\n# Big\n<b>bold</b>")
    found = WhatIf("pool", 0.0, 60.0, real, real, [broken], "", [], [])
    lines = regret.build_report(found, OUTCOME).splitlines()
    (row,) = (line for line in lines if "mine" in line)
    assert row.count("|") == 8
    assert row.endswith(" |")
    assert not any(line.startswith("#") or "<b>" in line for line in lines)

"""What commands show in a terminal: everything fits into 80 columns, and users' text cannot control it."""

from __future__ import annotations

from pathlib import Path

import pytest
from analytics_history import History
from command_line.run import HOSTILE_TEXT, gpu_flows
from command_line.terminal import show_in_terminal

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_policies_fit_into_the_terminal(columns: int) -> None:
    shown = show_in_terminal("policies", columns=columns)
    assert max(map(len, shown.splitlines())) <= columns
    text = " ".join(shown.split())
    for policy in gpu_flows("policies", "--json").json["policies"]:
        assert policy["name"] in text
        for option in policy["options"]:
            for value in (option["name"], option["allowed"], str(option["description"])):
                assert value in text, f"{option['name']} of {policy['name']} is shown in full"


@pytest.fixture
def hostile_warehouse(tmp_path: Path) -> Path:
    history = History(tmp_path)
    history.job(HOSTILE_TEXT, 0)
    history.query("select 1")
    return tmp_path / "warehouse.duckdb"


@pytest.mark.parametrize("form", ["--csv", "--json", ""])
def test_text_of_users_cannot_control_the_terminal(form: str, hostile_warehouse: Path) -> None:
    words = ["sql", "select name from jobs", "--database", str(hostile_warehouse), form]
    shown = show_in_terminal(*filter(None, words))
    assert "evil" in shown
    assert not {"\x1b", "\u202e"} & set(shown)


def test_csv_for_a_file_has_the_exact_text(hostile_warehouse: Path) -> None:
    written = gpu_flows("sql", "select name from jobs", "--database", str(hostile_warehouse), "--csv").out
    assert HOSTILE_TEXT in written

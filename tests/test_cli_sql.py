"""`gpu-flows sql`: tables, JSON and CSV, and the escaping of values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from command_line.run import HOSTILE_TEXT, CommandResult, expect_error, gpu_flows, gpu_flows_process

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    path = tmp_path / "w.duckdb"
    with duckdb.connect(str(path)) as made:
        made.execute("create table jobs (name varchar, gpus integer, cost decimal(6, 2), ended timestamptz)")
        made.execute("insert into jobs values ('=1+1', -2, 1.50, '2026-01-02 03:04:05+00')")
        made.execute("insert into jobs values (?, 3, null, null)", [HOSTILE_TEXT])
    return str(path)


def sql(warehouse: str, *words: str) -> CommandResult:
    return gpu_flows("sql", "--database", warehouse, *words)


def test_sql_escapes_values_in_a_table(warehouse: str) -> None:
    result = sql(warehouse, "select * from jobs")
    assert result.code == 0
    assert "=1+1" in result.out
    assert "x\\x1b[2J[red]\\u202eevil\\n=1" in result.out
    assert "\x1b" not in result.out
    assert result.err == "(2 rows)\n"


def test_sql_prints_json(warehouse: str) -> None:
    rows = sql(warehouse, "--json", "select *, 'nan'::double as nothing, 1 as gpus from jobs").json
    assert rows[0] == {
        "name": "=1+1",
        "gpus": -2,
        "cost": 1.5,
        "ended": "2026-01-02T03:04:05+00:00",
        "nothing": None,
        "gpus_1": 1,
    }
    assert rows[1]["name"] == HOSTILE_TEXT


def test_sql_prints_csv_without_formulas(warehouse: str) -> None:
    lines = sql(warehouse, "--csv", "select name, gpus, cost, '@x' as \"+sum\" from jobs limit 1").out
    assert lines == "name,gpus,cost,'+sum\n'=1+1,-2,1.5,'@x\n"


def test_sql_is_read_from_stdin_or_a_file(warehouse: str, tmp_path: Path) -> None:
    typed = gpu_flows_process(
        "sql", "--database", warehouse, "--csv", "-", env={**os.environ}, stdin="select 41 + 1 as answer"
    )
    assert typed.out == "answer\n42\n"
    (tmp_path / "q.sql").write_text("select $n + 1 as answer")
    assert sql(warehouse, "--file", "q.sql", "--param", "n=41", "--csv").out == "answer\n42\n"
    (tmp_path / "empty.sql").write_text(" \n")
    assert "empty" in expect_error(sql(warehouse, "--file", "empty.sql"))


def test_sql_lists_the_stored_queries() -> None:
    listed = {each["name"]: each for each in gpu_flows("sql", "--list", "--json").json}
    assert listed["slowest_jobs"]["parameters"][0]["name"] == "limit"
    assert listed["slowest_jobs"]["question"] in gpu_flows("sql", "--list").out


def test_sql_notes_that_rows_are_left_out(warehouse: str) -> None:
    result = sql(warehouse, "from range(5000)")
    assert len(result.out.splitlines()) == 1001
    assert "Only the first 1,000 rows" in result.err
    whole = sql(warehouse, "from range(5000)", "--csv")
    assert len(whole.out.splitlines()) == 5001
    assert whole.err == ""
    assert len(sql(warehouse, "from range(5000)", "--csv", "--max-rows", "7").out.splitlines()) == 8


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("selec 1", "selec"),
        ("drop table jobs", "Only queries"),
        ("select * from read_text('/etc/hostname')", "warehouse"),
        ("no_such_question", "There are: "),
    ],
)
def test_invalid_query_is_an_error(warehouse: str, question: str, expected: str) -> None:
    result = sql(warehouse, question)
    assert (result.code, result.out) == (1, "")
    assert expected in result.err
    assert "Traceback" not in result.err


def test_sql_without_a_warehouse_names_its_path(tmp_path: Path) -> None:
    error = expect_error(gpu_flows("sql", "select 1"), code=1)
    assert str(tmp_path / "home" / "warehouse.duckdb") in error


def test_closed_pipe_is_not_an_error(warehouse: str) -> None:
    line = (
        f"{sys.executable} -m gpu_flows.cli sql --database {warehouse} --csv 'from range(200000)' | head -1"
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("range\n", "")


# -- files ------------------------------------------------------------------------------------


def test_sql_writes_parquet_with_its_types(warehouse: str, tmp_path: Path) -> None:
    result = sql(
        warehouse, "select *, $n as n from jobs order by gpus -- all", "--param", "n=7", "--out", "j.parquet"
    )
    assert (result.code, result.out) == (0, "")
    assert "2 rows were written to j.parquet" in result.err
    with duckdb.connect() as reader:
        reader.execute("set TimeZone = 'Asia/Tokyo'")
        rows = reader.execute(f"select *, epoch(ended) from '{tmp_path / 'j.parquet'}'").fetchall()
        kinds = [
            kind for _, kind, *_ in reader.execute(f"describe from '{tmp_path / 'j.parquet'}'").fetchall()
        ]
    assert [row[0] for row in rows] == ["=1+1", HOSTILE_TEXT]
    assert rows[0][5] == 1767323045
    assert kinds[1:4] == ["INTEGER", "DECIMAL(6,2)", "TIMESTAMP WITH TIME ZONE"]


def test_sql_writes_csv_without_formulas(warehouse: str, tmp_path: Path) -> None:
    assert (
        sql(warehouse, "select name, gpus, ended, '@x' as \"+sum\" from jobs limit 1", "--out", "j.csv").code
        == 0
    )
    assert (tmp_path / "j.csv").read_text() == "name,gpus,ended,'+sum\n'=1+1,-2,2026-01-02 03:04:05+00,'@x\n"


@pytest.mark.parametrize("end", ["; -- done;", " /* ; */ ;\n", " -- ;"])
def test_sql_writes_a_query_with_a_comment_at_its_end(warehouse: str, tmp_path: Path, end: str) -> None:
    assert sql(warehouse, f"select 1 as x{end}", "--out", "x.csv").code == 0
    assert (tmp_path / "x.csv").read_text() == "x\n1\n"


def test_sql_neutralises_formulas_in_every_type_of_text(warehouse: str, tmp_path: Path) -> None:
    query = "select '=1'::enum ('=1') as e, '+x'::blob as b, -1 as i, -1.5::decimal(3, 1) as d"
    assert sql(warehouse, query, "--out", "x.csv").code == 0
    assert (tmp_path / "x.csv").read_text() == "e,b,i,d\n'=1,'+x,-1,-1.5\n"


def test_sql_explains_on_the_screen_only(warehouse: str) -> None:
    result = sql(warehouse, "explain select 1", "--out", "x.csv")
    assert "without --out" in expect_error(result, code=1)
    assert sql(warehouse, "explain select 1").code == 0


def test_sql_replaces_a_file_only_when_asked(warehouse: str, tmp_path: Path) -> None:
    (tmp_path / "j.csv").write_text("mine")
    assert "j.csv exists" in expect_error(sql(warehouse, "from jobs", "--out", "j.csv"))
    assert (tmp_path / "j.csv").read_text() == "mine"
    assert sql(warehouse, "from no_such", "--out", "j.csv", "--overwrite").code == 1
    assert (tmp_path / "j.csv").read_text() == "mine"
    assert sql(warehouse, "select 1 as x", "--out", "j.csv", "--overwrite").code == 0
    assert (tmp_path / "j.csv").read_text() == "x\n1\n"
    assert "must end in .csv or .parquet" in expect_error(sql(warehouse, "from jobs", "--out", "j.txt"))
    assert "does not exist" in expect_error(sql(warehouse, "from jobs", "--out", "no/j.csv"))
    assert sorted(path.name for path in tmp_path.iterdir() if "j." in path.name) == ["j.csv"]


def test_a_query_that_is_written_to_a_file_cannot_write_another_one(warehouse: str, tmp_path: Path) -> None:
    for question in (
        f"select 1) to '{tmp_path}/other.csv'; copy (select 1",
        f"copy (select 1) to '{tmp_path}/other.csv'",
        "select * from read_text('/etc/hostname')",
    ):
        assert sql(warehouse, question, "--out", "j.csv").code == 1
    assert not list(tmp_path.glob("*.csv"))


def test_sql_lists_queries_about_a_word() -> None:
    names = [each["name"] for each in gpu_flows("sql", "--list", "--json", "deadline").json]
    assert names == ["missed_deadlines"]
    shown = gpu_flows("sql", "--list", "missed_deadlines").out
    assert "Which jobs missed their deadlines" in shown
    assert "--param limit=20   how many to show" in shown
    assert "No named query is about 'nonsense'" in expect_error(
        gpu_flows("sql", "--list", "nonsense"), code=1
    )

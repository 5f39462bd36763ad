"""Queries on the warehouse: results, error messages, and what a query cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import duckdb
import pytest
from analytics_store import Store, T, job

from gpu_flows.analytics import query_runner
from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.analytics.sql_files import named_queries


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A warehouse with three jobs in it, which no test here can change."""
    store = Store(tmp_path_factory.mktemp("answers"))
    recorder = store.recorder()
    recorder.write(*(job(number) for number in range(3)))
    recorder.close()
    return store


# --- answers ---


def test_sql_gives_columns_and_rows(store: Store) -> None:
    given = run_query(store.database, "select job_id, gpus, submitted from jobs order by job_id limit 1")
    assert given.columns == ["job_id", "gpus", "submitted"]
    [(job_id, gpus, submitted)] = given.rows
    assert (job_id, gpus) == ("job-0", 1)
    assert isinstance(submitted, datetime)
    assert submitted.timestamp() == T
    assert not given.truncated


def test_every_named_query_has_a_result(store: Store) -> None:
    for query in named_queries():
        assert run_query(store.database, query.name).columns, query.name


def test_names_may_have_spaces_dashes_and_capitals(store: Store) -> None:
    for name in ("slowest_jobs", "slowest-jobs", "Slowest jobs"):
        assert "turnaround_s" in run_query(store.database, name).columns


def test_parameters_are_bound_and_not_inserted_as_text(store: Store) -> None:
    assert len(run_query(store.database, "waiting").rows) == 3
    assert len(run_query(store.database, "longest_waits", {"limit": "2"}).rows) == 2
    sql = "select count(*) from jobs where job_id = $id"
    assert run_query(store.database, sql, {"id": "job-1"}).rows == [(1,)]
    assert run_query(store.database, sql, {"id": "' or true --"}).rows == [(0,)]


def test_rows_can_be_limited(store: Store) -> None:
    assert run_query(store.database, "from jobs", max_rows=2).truncated
    assert len(run_query(store.database, "from jobs", max_rows=2).rows) == 2
    assert not run_query(store.database, "from jobs", max_rows=3).truncated
    assert len(run_query(store.database, "from range(5000)", max_rows=4321).rows) == 4321


def test_a_result_too_large_for_the_memory_is_truncated(store: Store) -> None:
    given = run_query(store.database, "select repeat('x', 1000) from range(100_000)", memory_mb=16)
    assert given.truncated
    assert 0 < len(given.rows) < 100_000


@pytest.mark.parametrize("question", ["show tables", "describe jobs", "explain from jobs", "summarize jobs"])
def test_queries_about_the_schema_are_allowed(store: Store, question: str) -> None:
    assert run_query(store.database, question).rows


# --- advice ---


def test_an_unknown_name_lists_the_names(store: Store) -> None:
    with pytest.raises(QueryError, match=r"slowest_job.*Did you mean slowest_jobs\? There are: .*makespan"):
        run_query(store.database, "slowest_job")
    with pytest.raises(QueryError, match=r"There are: .*utilization"):
        run_query(store.database, "nonsense")


def test_wrong_parameters_are_named(store: Store) -> None:
    with pytest.raises(QueryError, match=r"longest_waits has no parameter limits\. It takes: limit"):
        run_query(store.database, "longest_waits", {"limits": 1})
    with pytest.raises(QueryError, match=r"No value was given for \$pool, \$user"):
        run_query(store.database, "select $user, $pool")


def test_a_mistake_in_sql_is_shown_as_duckdb_explains_it(store: Store) -> None:
    with pytest.raises(QueryError, match="nowhere does not exist"):
        run_query(store.database, "select * from nowhere")
    with pytest.raises(QueryError, match="syntax error"):
        run_query(store.database, "selec * from jobs")


def test_no_warehouse_yet(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="There is no warehouse at"):
        run_query(tmp_path / "warehouse.duckdb", "from jobs")
    assert not list(tmp_path.iterdir())


def test_a_process_that_keeps_the_file_open_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_runner, "PATIENCE_S", 0.1)
    program = f"import duckdb; c = duckdb.connect({str(store.database)!r}); print('in'); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "in\n"
        with pytest.raises(QueryError, match=f"Process {writer.pid} has .* open for writing"):
            run_query(store.database, "from jobs")
        writer.communicate("close\n")
    assert len(run_query(store.database, "from jobs").rows) == 3


def test_a_query_process_that_dies_is_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho it was not meant to be >&2\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(QueryError, match="it was not meant to be"):
        run_query(store.database, "from jobs")


# --- what a query cannot do ---

ESCAPES = [
    "select * from read_text('{secret}')",
    "select * from read_blob('{secret}')",
    "select * from read_csv('{secret}')",
    "select * from read_json_objects('{secret}')",
    "select * from read_parquet('{secret}')",
    "select * from '{secret}.csv'",
    "select * from glob('{folder}/*')",
    "select * from sniff_csv('{secret}')",
    "select * from parquet_metadata('{secret}')",
    "select * from query('select * from read_text(''{secret}'')')",
    "select * from duckdb_secrets()",
    "select getenv('PATH')",
    "select * from secret_in_python",
    "explain analyze select * from read_text('{secret}')",
    "copy jobs to '{folder}/stolen.csv'",
    "copy (select 1) to '{folder}/stolen.parquet' (format parquet)",
    "copy jobs from '{secret}'",
    "export database '{folder}/stolen'",
    "import database '{folder}'",
    "attach '{folder}/stolen.duckdb'",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "set memory_limit = '100GB'",
    "reset lock_configuration",
    "pragma enable_profiling",
    "call duckdb_settings()",
    "create secret (type s3)",
    "create table stolen as select 1",
    "create temp table stolen as select 1",
    "create view stolen as select 1",
    "insert into jobs (job_id) values ('forged')",
    "with forged as (insert into jobs (job_id) values ('forged') returning *) from forged",
    "update jobs set user_name = 'eve'",
    "delete from jobs",
    "drop table jobs",
    "alter table jobs add column x int",
    "checkpoint warehouse",
    "begin transaction",
    "prepare p as select 1",
    "select 1; drop table jobs",
    "",
    "-- nothing but a comment",
]


@pytest.mark.parametrize("statement", ESCAPES)
def test_a_query_cannot_write_or_reach_anything_but_the_warehouse(
    store: Store, tmp_path: Path, statement: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret\n")
    (tmp_path / "secret.csv").write_text("the secret\n")
    before = store.database.read_bytes()
    with pytest.raises(QueryError) as refusal:
        run_query(store.database, statement.format(secret=secret, folder=tmp_path), timeout_s=20)
    assert "the secret" not in str(refusal.value)
    assert sorted(os.listdir(tmp_path)) == ["secret", "secret.csv"]
    assert store.database.read_bytes() == before


BOMBS = [
    "with recursive t(x) as (select 1 union all select x + 1 from t) select count(*) from t",
    "with recursive t(x) as (select 1 union all select x + 1 from t) select x from t order by -x",
    "select count(*) from range(1_000_000_000_000) a, range(1_000_000) b",
    "select * from range(10_000_000_000) order by hash(range)",
    "select list(range) from range(10_000_000_000)",
    "select length(repeat('x', 3_000_000_000))",
    "select max(s) from (select string_agg(range::varchar, ',') s from range(10_000_000_000))",
]


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_runaway_query_is_stopped_by_its_time_or_its_memory(store: Store, bomb: str) -> None:
    with pytest.raises(QueryError, match=r"No result within 1 s|needs more than 128 MB"):
        run_query(store.database, bomb, timeout_s=1, memory_mb=128)


def test_the_warehouse_is_unchanged_after_hostile_queries(store: Store) -> None:
    with duckdb.connect(str(store.database)) as connection:
        assert connection.execute("select count(*) from job_history").fetchone() == (3,)

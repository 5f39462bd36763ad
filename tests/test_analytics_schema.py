"""The schema and the SQL files: columns match the facts, older files are migrated, newer ones refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import duckdb
import pytest
from analytics_store import Store, job

from gpu_flows.analytics import migrations, sql_files
from gpu_flows.analytics.facts import FACTS, AttemptInterrupted
from gpu_flows.analytics.sql_files import Migration, NamedQuery, Parameter


def columns(store: Store, table: str) -> list[str]:
    return [name for (name,) in store.query(f"select column_name from (describe {table})")]


def test_fields_of_facts_are_the_columns_of_their_tables(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.recorder().close()
    for fact in FACTS:
        assert [field.name for field in dataclasses.fields(fact)] == columns(store, fact.table)


def test_an_older_file_is_migrated_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    recorder = store.recorder()
    recorder.write(job(1))
    recorder.close()
    newer = Migration(
        NEXT, "note", "alter table jobs add column note varchar default 'none'; create table extra (x int)"
    )
    monkeypatch.setattr(sql_files, "migrations", lambda: (*REAL_MIGRATIONS, newer))
    recorder = store.recorder()
    recorder.write(job(2))
    recorder.close()
    applied = [(step.version, step.name) for step in (*REAL_MIGRATIONS, newer)]
    assert store.query("select version, name from migrations order by version") == applied
    assert store.query("select job_id, note from jobs where job_id = 'job-1'") == [("job-1", "none")]
    assert store.count("jobs") == 2
    assert store.count("extra") == 0


def make_old_file(store: Store, version: int, *statements: str) -> None:
    """Create a warehouse as an older version left it, with the rows that the statements insert."""
    store.recorder().close()
    with duckdb.connect(str(store.database)) as connection:
        for (view,) in connection.execute("select name from installed_views").fetchall():
            connection.execute(f'drop view if exists "{view}"')
        connection.execute("delete from migrations; delete from installed_views")
        for (table,) in connection.execute("select table_name from duckdb_tables()").fetchall():
            if table not in ("migrations", "installed_views", "drained"):
                connection.execute(f"drop table {table}")
        for migration in REAL_MIGRATIONS[:version]:
            connection.execute(migration.sql)
            row = [migration.version, migration.name]
            connection.execute("insert into migrations values (?, ?, now())", row)
        for statement in statements:
            connection.execute(statement)


def test_a_file_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    make_old_file(store, 1, "insert into attempt_ends values ('old', 1, now(), 'completed', 0, '')")
    recorder = store.recorder()
    recorder.write(job(1))
    recorder.close()
    assert not recorder.trouble
    assert store.query("select job_id, exit_code, oom_killed from attempt_ends") == [("old", 0, None)]
    for fact in FACTS:
        assert [field.name for field in dataclasses.fields(fact)] == columns(store, fact.table)


def test_departures_become_interruptions(tmp_path: Path) -> None:
    """Facts of the old table are migrated; those still in the spool under its name are loaded."""
    store = Store(tmp_path)
    make_old_file(
        store,
        3,
        "insert into departures values"
        """ ('a', 1, to_timestamp(10), to_timestamp(12), 'preempted', 'srtf', '["b"]')""",
    )
    store.spool.mkdir(exist_ok=True)
    (store.spool / "1.ready").write_text(
        '{"table":"departures","job_id":"c","attempt":2,"asked":20.0,"gone":23.5,"kind":"moved",'
        '"policy":"srtf","room_for":"[]"}\n'
    )
    recorder = store.recorder()
    recorder.write(AttemptInterrupted("d", 1, 30.0, 31.0, "resized", "srtf", "[]"))
    recorder.close()
    assert not recorder.trouble
    assert store.spooled() == []
    assert store.query(
        "select job_id, attempt, epoch(requested), epoch(released), kind, policy, freed_for"
        " from interruptions order by job_id"
    ) == [
        ("a", 1, 10.0, 12.0, "preempted", "srtf", '["b"]'),
        ("c", 2, 20.0, 23.5, "moved", "srtf", "[]"),
        ("d", 1, 30.0, 31.0, "resized", "srtf", "[]"),
    ]
    with duckdb.connect(str(store.database)) as connection, pytest.raises(duckdb.ConstraintException):
        connection.execute("insert into interruptions (job_id, attempt) values ('a', 1)")


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.recorder().close()
    broken = Migration(NEXT, "broken", "create table half_way (x int); select * from no_such_table")
    with monkeypatch.context() as patched:
        patched.setattr(sql_files, "migrations", lambda: (*REAL_MIGRATIONS, broken))
        recorder = store.recorder()
        recorder.write(job(1))
        recorder.close()
        assert "no_such_table" in recorder.trouble
    recorder = store.recorder()
    recorder.close()
    assert store.count("jobs") == 1
    with pytest.raises(duckdb.CatalogException):
        store.count("half_way")


def test_a_file_of_a_newer_version_is_refused_and_facts_wait(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.recorder().close()
    with duckdb.connect(str(store.database)) as connection:
        connection.execute("insert into migrations values (99, 'future', now())")
    recorder = store.recorder()
    recorder.write(job(1))
    assert not recorder.drain()
    assert "newer gpu-flows (its schema is 99" in recorder.trouble
    assert "Upgrade gpu-flows" in recorder.trouble
    recorder.close()
    assert len(store.spooled()) == 1
    assert store.count("jobs") == 0


def test_changed_views_are_created_again_and_old_ones_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    mine = {
        "a_reads_b": "create or replace view a_reads_b as select * from b",
        "b": "create or replace view b as select 1 as x",
        "old": "create or replace view old as select 1 as x",
    }
    monkeypatch.setattr(sql_files, "views", lambda: mine)
    store.recorder().close()
    assert store.query("from a_reads_b") == [(1,)]
    del mine["old"]
    mine["b"] = "create or replace view b as select 2 as x, 3 as y"
    store.recorder().close()
    assert store.query("from a_reads_b") == [(2, 3)]
    with pytest.raises(duckdb.CatalogException):
        store.query("from old")


def test_a_users_own_view_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.recorder().close()
    with duckdb.connect(str(store.database)) as connection:
        connection.execute("create view mine as select count(*) as jobs from job_history")
    monkeypatch.setattr(
        sql_files, "views", lambda: {**REAL_VIEWS, "extra": "create or replace view extra as select 1"}
    )
    store.recorder().close()
    assert store.query("from mine") == [(0,)]


def test_views_work_in_a_plain_connection_and_in_an_attached_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.recorder().close()
    views = [name for name, sql in REAL_VIEWS.items() if "create or replace view" in sql]
    with duckdb.connect(str(store.database), read_only=True) as connection:
        for view in views:
            connection.execute(f"from {view}").fetchall()
    with duckdb.connect() as connection:
        connection.execute(f"attach '{store.database}' as elsewhere (read_only)")
        for view in views:
            connection.execute(f"from elsewhere.{view}").fetchall()


def test_every_sql_file_creates_what_its_name_says() -> None:
    for name, sql in REAL_VIEWS.items():
        assert re.search(rf"^create or replace (view|macro) {name}\b", sql, re.MULTILINE), name
    assert [step.version for step in REAL_MIGRATIONS] == list(range(1, len(REAL_MIGRATIONS) + 1))
    assert migrations.newest_version() == REAL_MIGRATIONS[-1].version


def test_every_named_query_has_a_question_and_describes_its_parameters() -> None:
    for query in sql_files.named_queries():
        assert query.question.endswith("?"), query.name
        used = set(re.findall(r"\$(\w+)", re.sub(r"^--.*$", "", query.sql, flags=re.MULTILINE)))
        assert used == {parameter.name for parameter in query.parameters}, query.name


def test_the_head_of_a_named_query_is_parsed() -> None:
    sql = (
        "-- Who is there?\n-- $limit = 5: how many.\n-- $pool = : only this one.\n-- $user: whose.\nselect 1"
    )
    assert sql_files._named_query("who", sql) == NamedQuery(
        "who",
        "Who is there?",
        sql,
        (
            Parameter("limit", "how many.", "5"),
            Parameter("pool", "only this one.", ""),
            Parameter("user", "whose.", None),
        ),
    )


REAL_MIGRATIONS = sql_files.migrations()
NEXT = REAL_MIGRATIONS[-1].version + 1
REAL_VIEWS = sql_files.views()

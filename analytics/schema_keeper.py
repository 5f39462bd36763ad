"""Keeps a warehouse file's schema and views as this version wants them.

Three small tables of its own: `migrations` (what was applied), `installed_views` (which texts)
and `drained` (the spool files that are in but perhaps not yet removed).
"""

from __future__ import annotations

from hashlib import sha256

import duckdb

from gpu_flows.analytics import catalog
from gpu_flows.analytics.facts import FACTS

_BOOKS = """
create table if not exists migrations (version integer primary key, name varchar, applied timestamptz);
create table if not exists installed_views (name varchar primary key, digest varchar);
create table if not exists drained (file varchar primary key);
"""


def newest_version() -> int:
    return catalog.migrations()[-1].version


def version(warehouse: duckdb.DuckDBPyConnection) -> int:
    """Of the last migration that was applied; 0 for an empty file."""
    try:
        found = warehouse.execute("select max(version) from migrations").fetchone()
    except duckdb.CatalogException:
        return 0
    return int(found[0] or 0) if found else 0


def bring_up_to_date(warehouse: duckdb.DuckDBPyConnection) -> None:
    """Apply missing migrations, then changed views."""
    warehouse.execute(_BOOKS)
    applied = version(warehouse)
    for step in catalog.migrations():
        if step.version > applied:
            warehouse.execute("begin")
            warehouse.execute(step.sql)
            warehouse.execute("insert into migrations values (?, ?, now())", [step.version, step.name])
            warehouse.execute("commit")
    _renew_views(warehouse)


def _renew_views(warehouse: duckdb.DuckDBPyConnection) -> None:
    """A view remembers the columns of those it reads, so when one text changed all are made anew.
    Their texts are noted last: when this is cut short, the next one does it all again."""
    wanted = {name: sha256(sql.encode()).hexdigest() for name, sql in catalog.views().items()}
    installed = dict(warehouse.execute("select name, digest from installed_views").fetchall())
    if wanted == installed:
        return
    for name in installed.keys() - wanted.keys():
        warehouse.execute(f'drop view if exists "{name}"')
    _create_in_order(warehouse, catalog.views())
    warehouse.execute("begin")
    warehouse.execute("delete from installed_views")
    warehouse.executemany("insert into installed_views values (?, ?)", list(wanted.items()))
    warehouse.execute("commit")


def _create_in_order(warehouse: duckdb.DuckDBPyConnection, views: dict[str, str]) -> None:
    """Each view after those it reads: what names a missing one waits for the next round."""
    waiting, error = {}, None
    for name, sql in views.items():
        try:
            warehouse.execute(sql)
        except duckdb.CatalogException as missing:
            waiting[name], error = sql, missing
    if error is None:
        return
    if len(waiting) == len(views):
        raise error
    _create_in_order(warehouse, waiting)


def inserts(warehouse: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """For each table of facts, the statement that takes its lines out of `incoming`."""
    return {fact.table: _insert(warehouse, fact.table) for fact in FACTS}


def _insert(warehouse: duckdb.DuckDBPyConnection, table: str) -> str:
    """A value that does not fit its column becomes NULL. A line without its key says nothing, and
    one whose key is already there says nothing new: both are left out."""
    columns = dict(warehouse.execute(_COLUMNS, [table]).fetchall())
    keys = [name for (name,) in warehouse.execute(_KEYS, [table]).fetchall()]
    times = {name for name, kind in columns.items() if kind == "TIMESTAMP WITH TIME ZONE"}
    shape = ", ".join(f'"{name}": "{"DOUBLE" if name in times else kind}"' for name, kind in columns.items())
    values = ", ".join(_timestamp(name) if name in times else f"fact.{name}" for name in columns)
    insert = (
        f"insert into {table} ({', '.join(columns)}) select {values} from"
        f" (select json_transform(fact, '{{{shape}}}') as fact from incoming where table_name = '{table}')"
    )
    if not keys:
        return insert
    return f"{insert} where {' and '.join(f'fact.{key} is not null' for key in keys)} on conflict do nothing"


def _timestamp(name: str) -> str:
    """Out of range, `to_timestamp` would stop everything that comes after."""
    return f"case when abs(fact.{name}) < 9e11 then to_timestamp(fact.{name}) end"


_COLUMNS = """
select column_name, data_type from duckdb_columns()
where database_name = current_database() and table_name = ? order by column_index
"""
_KEYS = """
select unnest(constraint_column_names) from duckdb_constraints()
where database_name = current_database() and table_name = ? and constraint_type = 'PRIMARY KEY'
"""

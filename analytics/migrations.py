"""Brings the schema and the views of a warehouse file up to date.

Three tables keep track of a file: `migrations` (the applied ones), `installed_views` (digests of the
texts) and `drained` (spool files that are loaded but perhaps not yet removed).
"""

from __future__ import annotations

from hashlib import sha256

import duckdb

from gpu_flows.analytics import sql_files

_BOOKKEEPING = """
create table if not exists migrations (version integer primary key, name varchar, applied timestamptz);
create table if not exists installed_views (name varchar primary key, digest varchar);
create table if not exists drained (file varchar primary key);
"""


def newest_version() -> int:
    """Return the version of the schema that this gpu-flows writes."""
    return sql_files.migrations()[-1].version


def read_version(warehouse: duckdb.DuckDBPyConnection) -> int:
    """Return the version of the last migration that was applied; 0 for an empty file."""
    try:
        found = warehouse.execute("select max(version) from migrations").fetchone()
    except duckdb.CatalogException:
        return 0
    return int(found[0] or 0) if found else 0


def migrate(warehouse: duckdb.DuckDBPyConnection) -> None:
    """Apply the missing migrations, then install the views if their texts have changed."""
    warehouse.execute(_BOOKKEEPING)
    applied = read_version(warehouse)
    for migration in sql_files.migrations():
        if migration.version > applied:
            warehouse.execute("begin")
            warehouse.execute(migration.sql)
            row = [migration.version, migration.name]
            warehouse.execute("insert into migrations values (?, ?, now())", row)
            warehouse.execute("commit")
    _install_views(warehouse)


def _install_views(warehouse: duckdb.DuckDBPyConnection) -> None:
    """Create all views if the text of any has changed, because a view stores the columns of the views that
    it reads. The digests are stored last, so that an interrupted installation is repeated."""
    wanted = {name: sha256(sql.encode()).hexdigest() for name, sql in sql_files.views().items()}
    installed = dict(warehouse.execute("select name, digest from installed_views").fetchall())
    if wanted == installed:
        return
    for name in installed.keys() - wanted.keys():
        warehouse.execute(f'drop view if exists "{name}"')
    _create_in_order(warehouse, sql_files.views())
    warehouse.execute("begin")
    warehouse.execute("delete from installed_views")
    warehouse.executemany("insert into installed_views values (?, ?)", list(wanted.items()))
    warehouse.execute("commit")


def _create_in_order(warehouse: duckdb.DuckDBPyConnection, views: dict[str, str]) -> None:
    """Create each view after those that it reads. One that reads a missing view is tried again in the
    next round."""
    missing, error = {}, None
    for name, sql in views.items():
        try:
            warehouse.execute(sql)
        except duckdb.CatalogException as failure:
            missing[name], error = sql, failure
    if error is None:
        return
    if len(missing) == len(views):
        raise error
    _create_in_order(warehouse, missing)

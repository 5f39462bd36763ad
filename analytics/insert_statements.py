"""The statements that turn lines of the spool into rows: one for each table of facts."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from gpu_flows.analytics.facts import FACTS

INCOMING = "incoming"
"""The temporary table that the statements read: columns `fact` (one line of JSON) and `table_name`."""

RENAMED = {
    "departures": ("interruptions", {"requested": "asked", "released": "gone", "freed_for": "room_for"})
}
"""Tables that an older version spooled under another name: the table now, and its columns' names then."""


def insert_statements(warehouse: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return a statement for each name under which facts are spooled."""
    statements = {fact.table: _insert(warehouse, fact.table, fact.table, {}) for fact in FACTS}
    for old_name, (table, old_columns) in RENAMED.items():
        statements[old_name] = _insert(warehouse, table, old_name, old_columns)
    return statements


def _insert(
    warehouse: duckdb.DuckDBPyConnection, table: str, spooled_as: str, keys_of: Mapping[str, str]
) -> str:
    """Build the statement for the lines that are spooled under a name. `keys_of` maps columns to their keys
    in the JSON where the two differ.

    A value that does not fit its column becomes NULL. A line without its primary key, or whose primary key
    exists already, is left out.
    """
    columns = dict(warehouse.execute(_COLUMNS, [table]).fetchall())
    primary_key = [name for (name,) in warehouse.execute(_PRIMARY_KEY, [table]).fetchall()]
    types = {name: "DOUBLE" if kind == _TIME else kind for name, kind in columns.items()}
    shape = ", ".join(f'"{keys_of.get(name, name)}": "{kind}"' for name, kind in types.items())
    values = ", ".join(_value(keys_of.get(name, name), kind) for name, kind in columns.items())
    insert = (
        f"insert into {table} ({', '.join(columns)}) select {values} from (select json_transform"
        f"(fact, '{{{shape}}}') as fact from {INCOMING} where table_name = '{spooled_as}')"
    )
    if not primary_key:
        return insert
    has_key = " and ".join(f"fact.{key} is not null" for key in primary_key)
    return f"{insert} where {has_key} on conflict do nothing"


def _value(key: str, kind: str) -> str:
    """Select a value. `to_timestamp` fails for a number that is out of range: such a time becomes NULL."""
    return (
        f"case when abs(fact.{key}) < 9e11 then to_timestamp(fact.{key}) end"
        if kind == _TIME
        else f"fact.{key}"
    )


_TIME = "TIMESTAMP WITH TIME ZONE"
_COLUMNS = """
select column_name, data_type from duckdb_columns()
where database_name = current_database() and table_name = ? order by column_index
"""
_PRIMARY_KEY = """
select unnest(constraint_column_names) from duckdb_constraints()
where database_name = current_database() and table_name = ? and constraint_type = 'PRIMARY KEY'
"""

"""Reads the SQL files of this package: migrations, views and named queries."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Migration(NamedTuple):
    """A file schema/NNN_name.sql: one step from the previous version of the schema."""

    version: int
    name: str
    sql: str


class Parameter(NamedTuple):
    """A `$name` of a named query. One without a default is required."""

    name: str
    description: str
    default: str | None


class NamedQuery(NamedTuple):
    """A file queries/name.sql. Its first comment line is the question that it answers."""

    name: str
    question: str
    sql: str
    parameters: tuple[Parameter, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations in the order in which they are applied."""
    split = ((*stem.split("_", 1), sql) for stem, sql in _sql_files("schema").items())
    return tuple(Migration(int(number), name, sql) for number, name, sql in split)


@cache
def views() -> dict[str, str]:
    """Return the text of every view and macro by its name."""
    return _sql_files("views")


@cache
def named_queries() -> list[NamedQuery]:
    """Return the named queries in the order of their names."""
    return [_named_query(name, sql) for name, sql in _sql_files("queries").items()]


def _sql_files(folder: str) -> dict[str, str]:
    """Map stems to texts, in the order of names. Works in a checkout and in an installed wheel."""
    found = (files("gpu_flows.analytics") / folder).iterdir()
    return {
        path.name.removesuffix(".sql"): path.read_text(encoding="utf-8")
        for path in sorted(found, key=lambda path: path.name)
        if path.name.endswith(".sql")
    }


_PARAMETER = re.compile(r"^-- \$(?P<name>\w+)(?: = (?P<default>[^:]*))?: (?P<description>.+)$", re.MULTILINE)


def _named_query(name: str, sql: str) -> NamedQuery:
    """Parse the head of the file: `-- the question`, then `-- $name = default: description` lines."""
    parameters = tuple(
        Parameter(match["name"], match["description"], match["default"]) for match in _PARAMETER.finditer(sql)
    )
    return NamedQuery(name, sql.partition("\n")[0].removeprefix("-- "), sql, parameters)

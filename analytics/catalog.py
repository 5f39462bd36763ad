"""The SQL files of this room: migrations, views and named queries.

Adding a view or a named query is one new file; nothing else has to know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Migration:
    """schema/NNN_name.sql: one step from the schema before it."""

    version: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A `$name` of a named query. Without a default it has to be given."""

    name: str
    description: str
    default: str | None


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """queries/name.sql: its first comment line is the question it answers."""

    name: str
    question: str
    sql: str
    parameters: tuple[Parameter, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """In the order to apply them."""
    steps = []
    for stem, sql in _sql_files("schema").items():
        number, name = stem.split("_", 1)
        steps.append(Migration(int(number), name, sql))
    return tuple(sorted(steps, key=lambda step: step.version))


@cache
def views() -> dict[str, str]:
    """The text of every view (or macro) by its name."""
    return _sql_files("views")


@cache
def named_queries() -> list[NamedQuery]:
    return [_named_query(name, sql) for name, sql in _sql_files("queries").items()]


def _sql_files(folder: str) -> dict[str, str]:
    """Stem to text, in the order of names. Works from a checkout and from an installed wheel."""
    found = (files("gpu_flows.analytics") / folder).iterdir()
    return {
        path.name.removesuffix(".sql"): path.read_text(encoding="utf-8")
        for path in sorted(found, key=lambda path: path.name)
        if path.name.endswith(".sql")
    }


_PARAMETER = re.compile(r"^-- \$(?P<name>\w+)(?: = (?P<default>[^:]*))?: (?P<description>.+)$", re.MULTILINE)


def _named_query(name: str, sql: str) -> NamedQuery:
    """The head of the file reads `-- the question`, then a `-- $name = default: what it is` each."""
    parameters = tuple(
        Parameter(match["name"], match["description"], match["default"]) for match in _PARAMETER.finditer(sql)
    )
    return NamedQuery(name, sql.partition("\n")[0].removeprefix("-- "), sql, parameters)

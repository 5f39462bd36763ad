"""A figure of the history: the question it answers, the SQL that it is drawn from, and how it is drawn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_flows.analytics.figures.theme import MOST_MARKS, Drawing
from gpu_flows.analytics.query_runner import QueryError, QueryResult, run_query

logger = logging.getLogger(__name__)

TIMEOUT_S, MEMORY_MB = 120.0, 2048  # of a query


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a warehouse that a figure shows: one pool over some time."""

    database: Path
    pool: str
    since: datetime
    until: datetime

    def ask(self, sql: str, max_rows: int | None = None) -> QueryResult:
        """Run SQL, in which $pool, $since and $until are this scope. Raises QueryError."""
        scope = {"pool": self.pool, "since": self.since, "until": self.until}
        return run_query(
            self.database, sql, scope, max_rows=max_rows, timeout_s=TIMEOUT_S, memory_mb=MEMORY_MB
        )


Draw = Callable[[QueryResult], Drawing | None]
"""From the result of the query to a figure; None if it holds nothing to draw."""


@dataclass(frozen=True, slots=True)
class Chart:
    """How a figure is made: by one query, because each costs a process."""

    key: str
    title: str
    meaning: str  # in one sentence: what it shows, and how to read it
    sql: str
    draw: Draw
    when_empty: str
    views: tuple[str, ...] = ()  # that a warehouse may not have: an older gpu-flows has written it
    most_rows: int = MOST_MARKS


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart with its figure, or with the reason why there is none. The rows are its alternative in text."""

    key: str
    title: str
    meaning: str
    drawing: Drawing | None = None
    missing: str = ""
    data: QueryResult = field(default_factory=lambda: QueryResult([], [], False))

    @classmethod
    def of(
        cls,
        key: str,
        title: str,
        meaning: str,
        drawing: Drawing | None,
        when_empty: str,
        data: QueryResult | None = None,
    ) -> Drawn:
        """Return the figure; `when_empty` is the reason if there is none."""
        missing = "" if drawing else when_empty
        return cls(key, title, meaning, drawing, missing, data or QueryResult([], [], False))


def read_chart(chart: Chart, scope: Scope, views: set[str]) -> Drawn:
    """Ask the warehouse, which has these views, and draw the figure. One that cannot be drawn says why."""
    if absent := [view for view in chart.views if view not in views]:
        missing = f"This warehouse has no {' and no '.join(absent)} yet; a worker of this version adds it."
        return Drawn(chart.key, chart.title, chart.meaning, missing=missing)
    try:
        found = scope.ask(chart.sql, chart.most_rows)
    except QueryError as error:
        return Drawn(chart.key, chart.title, chart.meaning, missing=str(error))
    table = _make_table(found)
    try:
        drawing = chart.draw(found)
    except Exception as error:  # of values that nobody thought of; the other figures are shown nevertheless
        logger.debug("Figure %s cannot be drawn", chart.key, exc_info=True)
        missing = f"It cannot be drawn, which is a defect of gpu-flows: {error!r}"
        return Drawn(chart.key, chart.title, chart.meaning, None, missing, table)
    return Drawn.of(chart.key, chart.title, chart.meaning, drawing, chart.when_empty, table)


def _make_table(found: QueryResult) -> QueryResult:
    """Leave out columns that hold no value, or lists, which only the drawing needs."""
    if not found.rows:
        return found
    shown = [
        number
        for number, values in enumerate(zip(*found.rows, strict=True))
        if not all(value is None or isinstance(value, list) for value in values)
    ]
    rows = [tuple(row[number] for number in shown) for row in found.rows]
    return QueryResult([found.columns[number] for number in shown], rows, found.truncated)


def list_views(scope: Scope) -> set[str]:
    """Return the names of the warehouse's views. Raises QueryError."""
    rows: list[tuple[Any, ...]] = scope.ask("select view_name from duckdb_views() where not internal").rows
    return {name for (name,) in rows}

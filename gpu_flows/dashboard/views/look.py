"""What a view is made from: the pool as it is, what the address asks for, and where answers come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from gpu_flows.dashboard.answers import Answers
from gpu_flows.dashboard.pool_watch import PoolWatch, Snapshot
from gpu_flows.dashboard.replays import Replays

T = TypeVar("T")

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Settings:
    """Which pool is shown, and where its history is."""

    pool: str
    database: Path
    run_url: Callable[[str], str]  # from the id of a run to its page in the Prefect UI


@dataclass(slots=True)
class Sources:
    """Where views get what they show."""

    settings: Settings
    watch: PoolWatch
    queries: Answers  # of the warehouse
    forecasts: Answers  # by simulations of the present state
    replays: Replays


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the pool."""

    view: str
    snapshot: Snapshot
    params: QueryParams
    sources: Sources

    def get(self, name: str) -> str:
        """Return a parameter of the address; empty if it has none."""
        return str(self.params.get(name, ""))

    def link(self, **changes: object) -> str:
        """Return the address of the same view with some parameters changed; an empty one is left out."""
        kept = [(name, value) for name, value in self.params.multi_items() if name not in changes]
        added = [(name, str(value)) for name, value in changes.items() if value not in ("", None)]
        return "?" + urlencode(kept + added)


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a longer list."""

    rows: Sequence[Any]
    number: int  # from 1
    pages: int
    first: int  # the place of its first row, from 1
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


def page_of(rows: Sequence[Any], wanted: str, size: int = PAGE_SIZE) -> Page:
    """Return the page of this number, or the nearest that there is."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(int(wanted), 1), pages) if wanted.isdecimal() and len(wanted) < 9 else 1
    first = (number - 1) * size
    return Page(rows[first : first + size], number, pages, first + 1, len(rows))


def contains(text: str, *fields: object) -> bool:
    """Return whether one of the fields contains the text, whatever the case."""
    wanted = text.strip().casefold()
    return not wanted or any(wanted in str(field).casefold() for field in fields)

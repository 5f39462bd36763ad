"""The base class of trace formats, and the list of all formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import ConfigDict

from gpu_flows.common.discovery import classes_in
from gpu_flows.common.forms import Form
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class FormatOptions(Form):
    """What a format needs to know in addition to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Format(ABC):
    """A file format for traces. The first line of a subclass's docstring is its description."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]  # a file with all of these columns is probably in this format
    delimiter: ClassVar[str] = ","
    Options: ClassVar[type[FormatOptions]] = FormatOptions

    def __init__(self, **options: Any) -> None:
        self.options = self.Options(**options)

    @classmethod
    def column_names(cls, first_row: list[str]) -> Sequence[str] | None:
        """Return the names of the columns if a file with this first row may be in this format."""
        return first_row if set(cls.columns) <= set(first_row) else None

    @abstractmethod
    def arrivals(self, table: Table) -> Iterator[Arrival]:
        """Yield the jobs in the order of the file."""


@cache
def formats() -> dict[str, type[Format]]:
    """Return every format by name."""
    found = {format.name: format for format in classes_in("gpu_flows.schedulers.traces", Format)}
    return dict(sorted(found.items()))

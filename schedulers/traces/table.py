"""A trace file as rows of cells, with checked access to a cell.

Formats access cells by position. A dictionary for each of millions of rows would take longer than
everything else.
"""

from __future__ import annotations

import csv
import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

_LARGEST = sys.float_info.max  # a bound that excludes infinity and "not a number"
_GZIP = b"\x1f\x8b"
NO_GPU = "asks for no GPU"
_A_DATE = "a date such as 2017-10-03 14:05:59"


class TraceError(ValueError):
    """The trace cannot be read. The message states where, what was found and what was expected."""


class Table:
    """The rows of a trace file. Every iteration opens the file again and starts at its first row."""

    def __init__(
        self, path: Path, names: Sequence[str], delimiter: str = ",", has_header: bool = True
    ) -> None:
        self.path = path
        self.names = [name.strip() for name in names]
        self.skipped: Counter[str] = Counter()
        self._delimiter = delimiter
        self._has_header = has_header
        twice = [name for name, count in Counter(self.names).items() if name and count > 1]
        if twice:
            raise TraceError(f"Trace {path} has two columns named {twice[0]}. Rename or remove one of them.")

    def __iter__(self) -> Iterator[list[str]]:
        width = len(self.names)
        with _lines(self.path) as lines:
            reader = csv.reader(lines, delimiter=self._delimiter)
            self._reader, self._read_until = reader, 0
            if self._has_header:
                next(filter(None, reader), None)
            self._read_until = reader.line_num
            for row in reader:
                if len(row) == width:
                    yield row
                elif row:  # skip empty lines
                    raise TraceError(
                        f"Trace {self.path}, line {self.line} has {len(row)} cells instead of {width}."
                        f"{self._suspect_quote()}"
                    )
                self._read_until = reader.line_num

    @property
    def line(self) -> int:
        """The number of the line with which the row begins that was read last. A cell in quotes may go on
        over the lines after it."""
        return self._read_until + 1

    def _suspect_quote(self) -> str:
        """A hint for a row that goes on over several lines, as a quote that is not closed makes it do."""
        last = self._reader.line_num
        return f" It goes on until line {last}: is a quote not closed?" if last > self.line else ""

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def positions(self, *names: str) -> list[int]:
        """Return the positions of these columns."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise TraceError(f"Trace {self.path} has no column {', '.join(missing)}.")
        return [self.names.index(name) for name in names]

    def skip(self, reason: str) -> None:
        """Count a row that is left out for this reason."""
        self.skipped[reason] += 1

    def cell_error(self, row: Sequence[str], at: int, expected: str) -> TraceError:
        """Return the error about a cell of the row that was read last."""
        where = f"Trace {self.path}, line {self.line}, column {self.names[at]}"
        return TraceError(f"{where}: {_shorten(row[at])} is not {expected}.{self._suspect_quote()}")

    def gpu_rows(self, num_gpus: int) -> Iterator[tuple[int, list[str], int]]:
        """Yield each row that asks for GPUs, as (row number from 1, row, GPUs). Count the others as
        skipped. `num_gpus` is the position of the column with the number of GPUs."""
        for number, row in enumerate(self, start=1):
            gpus = self.integer(row, num_gpus)
            if gpus:
                yield number, row, gpus
            else:
                self.skip(NO_GPU)

    # -- cells --------------------------------------------------------------------------------

    def text(self, row: Sequence[str], at: int) -> str:
        value = row[at].strip()
        if not value:
            raise self.cell_error(row, at, "filled in")
        return value

    def number(self, row: Sequence[str], at: int, least: float = 0.0, most: float = _LARGEST) -> float:
        try:
            value = float(row[at])
        except ValueError:
            raise self.cell_error(row, at, _describe_number(least, most)) from None
        if least <= value <= most:
            return value
        raise self.cell_error(row, at, _describe_number(least, most))

    def time(self, row: Sequence[str], at: int) -> float:
        """Return a time in seconds; a trace may count from any moment."""
        return self.number(row, at, least=-_LARGEST)

    def integer(self, row: Sequence[str], at: int, least: int = 0) -> int:
        try:
            value = int(row[at])
        except ValueError:
            value = self._integer_with_decimals(row, at, least)
        if value >= least:
            return value
        raise self.cell_error(row, at, f"a whole number of at least {least}")

    def _integer_with_decimals(self, row: Sequence[str], at: int, least: int) -> int:
        """Accept 1.0 and 2.0: many programs write integers like this if a cell of the column is empty."""
        try:
            value = float(row[at])
        except ValueError:
            value = 0.5
        if not value.is_integer():
            raise self.cell_error(row, at, f"a whole number of at least {least}")
        return int(value)

    def date(self, row: Sequence[str], at: int) -> datetime:
        try:
            value = datetime.fromisoformat(row[at])
        except ValueError:
            raise self.cell_error(row, at, _A_DATE) from None
        if value.tzinfo:
            raise self.cell_error(row, at, f"{_A_DATE}, without a time zone")
        return value

    def earliest_date(self, at: int) -> datetime:
        """Return the earliest date of a column, in whichever row it is."""
        first = min((row[at] for row in self), default="")  # dates in one format sort like their text
        try:
            return datetime.fromisoformat(first).replace(tzinfo=None)
        except ValueError:
            return datetime.min  # `date` reports the bad cell when it reads the row


def first_row(path: Path, delimiter: str = ",") -> list[str]:
    """Return the header, or the first row of a file without a header."""
    with _lines(path) as lines:
        first: list[str] = next(filter(None, csv.reader(lines, delimiter=delimiter)), [])
    return [cell.strip() for cell in first]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _shorten(cell: str) -> str:
    return repr(cell) if len(cell) <= 60 else f"{cell[:60]!r}..."


def _describe_number(least: float, most: float) -> str:
    if least == -_LARGEST:
        return "a number"
    return f"a number of at least {least:g}" if most == _LARGEST else f"a number from {least:g} to {most:g}"


@contextmanager
def _lines(path: Path) -> Iterator[TextIO]:
    """Open the file as text, gzipped or not. Every fault is raised as a TraceError."""
    if path.name.endswith((".tar.gz", ".tgz", ".zip", ".tar")):
        raise TraceError(
            f"Trace {path} is an archive of files. Unpack it and give the path of one file in it."
        )
    try:
        with path.open("rb") as file:
            zipped = file.read(len(_GZIP)) == _GZIP
        opened = gzip.open if zipped else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as lines:
            yield lines
    except OSError as error:
        raise TraceError(f"Trace {path} cannot be read: {error.strerror or error}.") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"Trace {path} is a broken gzip file: {error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"Trace {path} is not a table of text in UTF-8: {error}.") from error

"""A trace file as rows of cells, and the words for a cell that is wrong.

Readers look cells up by position, for a trace has up to millions of rows and a dictionary for each
of them would take longer than everything else.
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

_LARGEST = sys.float_info.max  # a bound that lets neither infinity nor "not a number" through
_GZIP = b"\x1f\x8b"
_A_DATE = "a date such as 2017-10-03 14:05:59"


class TraceError(ValueError):
    """A trace that cannot be read; the message says where, what is there and what should be."""


class Table:
    """The rows of a trace file, top to bottom. Each pass opens it anew, so there may be several."""

    def __init__(self, path: Path, names: Sequence[str], delimiter: str = ",", headed: bool = True) -> None:
        self.path = path
        self.names = [name.strip() for name in names]
        self.skipped: Counter[str] = Counter()
        self._delimiter = delimiter
        self._headed = headed
        twice = [name for name, count in Counter(self.names).items() if name and count > 1]
        if twice:
            raise TraceError(f"Trace {path} has two columns named {twice[0]}. Rename or remove one of them.")

    def __iter__(self) -> Iterator[list[str]]:
        width = len(self.names)
        with _lines(self.path) as lines:
            reader = csv.reader(lines, delimiter=self._delimiter)
            self._reader = reader
            if self._headed:
                next(filter(None, reader), None)
            for row in reader:
                if len(row) == width:
                    yield row
                elif row:  # an empty line is no row
                    raise TraceError(
                        f"Trace {self.path}, line {self.line} has {len(row)} cells in place of {width}."
                    )

    @property
    def line(self) -> int:
        """Where in the file the row is that was read last."""
        return self._reader.line_num

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def at(self, *names: str) -> list[int]:
        """The positions of these columns."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise TraceError(f"Trace {self.path} has no column {', '.join(missing)}.")
        return [self.names.index(name) for name in names]

    def skip(self, reason: str) -> None:
        """Leave this row out, and remember that and why."""
        self.skipped[reason] += 1

    def bad(self, row: Sequence[str], at: int, expected: str) -> TraceError:
        """What to raise about a cell of the row that was read last."""
        return TraceError(
            f"Trace {self.path}, line {self.line}, column {self.names[at]}: {row[at]!r} is not {expected}."
        )

    # -- cells --------------------------------------------------------------------------------

    def text(self, row: Sequence[str], at: int) -> str:
        value = row[at].strip()
        if not value:
            raise self.bad(row, at, "filled in")
        return value

    def number(self, row: Sequence[str], at: int, least: float = 0.0, most: float = _LARGEST) -> float:
        try:
            value = float(row[at])
        except ValueError:
            raise self.bad(row, at, _a_number(least, most)) from None
        if least <= value <= most:
            return value
        raise self.bad(row, at, _a_number(least, most))

    def time(self, row: Sequence[str], at: int) -> float:
        """Seconds since whenever the trace counts from."""
        return self.number(row, at, least=-_LARGEST)

    def whole(self, row: Sequence[str], at: int, least: int = 0) -> int:
        try:
            value = int(row[at])
        except ValueError:
            value = self._written_with_a_point(row, at, least)
        if value >= least:
            return value
        raise self.bad(row, at, f"a whole number of at least {least}")

    def _written_with_a_point(self, row: Sequence[str], at: int, least: int) -> int:
        """Many programs write a column of whole numbers as 1.0, 2.0 once a cell of it was empty."""
        try:
            value = float(row[at])
        except ValueError:
            value = 0.5
        if not value.is_integer():
            raise self.bad(row, at, f"a whole number of at least {least}")
        return int(value)

    def date(self, row: Sequence[str], at: int) -> datetime:
        try:
            value = datetime.fromisoformat(row[at])
        except ValueError:
            raise self.bad(row, at, _A_DATE) from None
        if value.tzinfo:
            raise self.bad(row, at, f"{_A_DATE}, without a time zone")
        return value

    def earliest(self, at: int) -> datetime:
        """The first date in a column, wherever in the file it stands: a moment to count from."""
        first = min((row[at] for row in self), default="")  # dates written alike sort as their text does
        try:
            return datetime.fromisoformat(first).replace(tzinfo=None)
        except ValueError:
            return datetime.min  # that row is named when its turn comes


def first_row(path: Path, delimiter: str = ",") -> list[str]:
    """The header, or the first row of a file that has none."""
    with _lines(path) as lines:
        first: list[str] = next(filter(None, csv.reader(lines, delimiter=delimiter)), [])
    return [cell.strip() for cell in first]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _a_number(least: float, most: float) -> str:
    if least == -_LARGEST:
        return "a number"
    return f"a number of at least {least:g}" if most == _LARGEST else f"a number from {least:g} to {most:g}"


@contextmanager
def _lines(path: Path) -> Iterator[TextIO]:
    """The file as text, unzipped if it is zipped; every trouble with it as a TraceError."""
    if path.name.endswith((".tar.gz", ".tgz", ".zip", ".tar")):
        raise TraceError(f"Trace {path} is an archive of files. Unpack it and name the file that you want.")
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

"""Trace files for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Write = Callable[..., Path]


def trace_writer(folder: Path) -> Write:
    """Return a function that writes rows to a file in the folder and returns its path."""

    def write(*rows: str, name: str = "trace.csv") -> Path:
        path = folder / name
        path.write_text("\n".join(rows) + "\n")
        return path

    return write

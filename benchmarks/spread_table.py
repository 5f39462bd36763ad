"""A table of measurements, one row each with median, p90, minimum and maximum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common import SPREAD_HEADING, Spread


def print_spreads(
    heading: str,
    rows: Mapping[str, Sequence[float]],
    width: int,
    more: Mapping[str, str] | None = None,
    more_heading: str = "",
) -> None:
    """Print the table. `more` is an optional text at the end of each row."""
    print(f"{heading:<{width}}{SPREAD_HEADING}{more_heading}")
    for label, values in rows.items():
        print(f"{label:<{width}}{Spread.of(values).text()}{(more or {}).get(label, '')}")

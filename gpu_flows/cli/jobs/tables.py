"""Tables of jobs that are readable on a terminal of 80 columns.

Where a table is too wide, its last column moves to a line of its own below each row, and names are cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpu_flows.cli import output

GAP = 2
INDENT = 4
SHORTEST = 8  # a column is not cut further


def draw_jobs(
    columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()
) -> RenderableType:
    """A table of jobs. Rows are lines if the terminal is wide enough."""
    table = output.make_table(columns, rows, right)
    return table if output.fits(table) else _stack(columns, rows, right)


def _stack(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str]) -> Group:
    """The rows without their last column, which follows below each row, wrapped and indented."""
    heads = list(columns[:-1])
    texts = [[output.make_cell(value).plain for value in row[:-1]] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(heads, *texts, strict=True)]
    excess = sum(widths) + GAP * (len(widths) - 1) - output.make_console().width
    while excess > 0 and max(widths) > SHORTEST:
        widest = widths.index(max(widths))
        widths[widest] -= 1
        excess -= 1

    def draw(values: Sequence[str], style: str = "") -> Text:
        cells = zip(values, widths, heads, strict=True)
        fitted = [_fit(value, width, head in right) for value, width, head in cells]
        return Text((" " * GAP).join(fitted).rstrip(), style=style, no_wrap=True, overflow="crop")

    drawn: list[RenderableType] = [draw(heads, "bold")]
    for row, values in zip(rows, texts, strict=True):
        drawn.append(draw(values))
        if row[-1] not in (None, ""):
            drawn.append(Padding(output.make_cell(row[-1]), (0, 0, 0, INDENT)))
    return Group(*drawn)


def _fit(value: str, width: int, to_right: bool) -> str:
    """The value in a cell of this width, with an ellipsis if it is cut."""
    if cell_len(value) > width:
        return set_cell_size(value, width - 1) + "…"
    padding = " " * (width - cell_len(value))
    return padding + value if to_right else value + padding

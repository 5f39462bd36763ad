"""HTML pages: templates and their styles and scripts, used by the report, by `--charts` and by the dashboard.

    base.html      the frame of every page: head, header, theme, footer
    pieces.html    macros: numbers, a figure with its text alternative, a table, a notice
    figures.html   a page of nothing but figures
    report.html    the report
    style.css, page.js

`render_page` fills in a template. With `inline=True` the page is one file that needs no network, with
plotly.js in it; otherwise it links to `static/NAME`, which a server answers with `read_asset`. Names are
escaped everywhere. jinja2 comes with Prefect, but since this is what imports it, the extra `charts` names it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gpu_flows.analytics.figures.chart import Drawn
from gpu_flows.analytics.figures.theme import format_duration, printable

MOST_ROWS = 100  # of a table; a figure's data may have thousands
SCRIPTS, STYLES = ("plotly.min.js", "page.js"), "style.css"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to show, or why there are none."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    when_empty: str = "Nothing to show."
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """A figure in digits, with what it counts."""

    label: str
    value: str
    remark: str = ""


def render_page(template: str, values: Mapping[str, Any], *, inline: bool = True) -> str:
    """Fill in a template. `values` must hold `title`."""
    page: dict[str, Any] = {"inline": inline, "scripts": SCRIPTS, "styles": STYLES, "policy": ""}
    if inline:
        page["policy"] = _security_policy()
    return make_environment().get_template(template).render(**page, **values)


def render_figures(title: str, figures: Sequence[Drawn], remark: str = "") -> str:
    """Return a page of figures in one file. The remark says what they are drawn from."""
    return render_page("figures.html", {"title": title, "remark": remark, "figures": figures})


def read_asset(name: str) -> str:
    """Return the text of a script or of the styles. Raises KeyError for any other name."""
    if name not in (*SCRIPTS, STYLES):
        raise KeyError(name)
    return _read(name)


@cache
def _read(name: str) -> str:
    if name == "plotly.min.js":
        from plotly.offline import get_plotlyjs

        return str(get_plotlyjs())
    return (files("gpu_flows.analytics") / "pages" / name).read_text(encoding="utf-8")


@cache
def _security_policy() -> str:
    """Allow the scripts of this page by their digests, and no request. plotly sets styles of its elements."""
    digests = " ".join(
        f"'sha256-{base64.b64encode(sha256(_read(name).encode()).digest()).decode()}'" for name in SCRIPTS
    )
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def make_environment(*folders: Path) -> Environment:
    """Return what fills in the templates of these folders, which may extend those of this package."""
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
    )
    environment.globals.update(
        MOST_ROWS=MOST_ROWS,
        source=lambda name: Markup(_read(name)),  # our own files
        figure_json=figure_json,
        cell=format_cell,
        heading=lambda column: re.sub(r"_s$", "", str(column)).replace("_percent", " %").replace("_", " "),
        is_number=lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    )
    return environment


def figure_json(drawn: Drawn) -> Markup:
    """Return the figure as JSON that may stand in a script element: no name can end the element."""
    assert drawn.drawing is not None
    text = drawn.drawing.figure.to_json(engine="json").replace("<", "\\u003c")
    return Markup(text)  # JSON with `<` escaped cannot leave its element


def format_cell(column: str, value: object) -> str:
    """Return a value as a table shows it. The names of columns say the units: `_s` seconds, `_percent`."""
    match value:
        case None:
            return "–"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case int() | float() if column.endswith("_s"):
            return format_duration(float(value))
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case list() | dict():
            return json.dumps(value, default=str)
        case _:
            return str(value)

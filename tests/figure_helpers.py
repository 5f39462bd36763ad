"""What a test asks of a figure: its texts, and whether it can be shown."""

from __future__ import annotations

import json
from typing import Any

from gpu_flows.analytics.figures.theme import MOST_MARKS, Drawing
from gpu_flows.analytics.query_runner import QueryResult

EVIL = "<script>alert('1')</script>&\"\x1b[2J\u202e%{x}"


def result(columns: str, *rows: tuple[Any, ...], truncated: bool = False) -> QueryResult:
    return QueryResult(columns.split(), list(rows), truncated)


def as_json(drawing: Drawing) -> dict[str, Any]:
    """The figure as a page gets it: valid JSON, transparent, and not larger than can be drawn."""
    figure: dict[str, Any] = json.loads(drawing.figure.to_json(engine="json"))
    assert figure["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    assert sum(len(trace.get("y") or trace.get("x") or []) for trace in figure["data"]) <= 3 * MOST_MARKS
    return figure


def all_texts(value: Any) -> list[str]:
    """Every text in a figure, but for the data that are never shown."""
    match value:
        case str():
            return [value]
        case list():
            return [text for member in value for text in all_texts(member)]
        case dict():
            shown = {key: member for key, member in value.items() if key != "customdata"}
            return [text for member in shown.values() for text in all_texts(member)]
        case _:
            return []


def assert_harmless(drawing: Drawing) -> None:
    """No name can be a tag, a placeholder of plotly, or turn the text around."""
    texts = all_texts(as_json(drawing))
    assert any("&lt;script&gt;" in text for text in texts)
    assert not any("<script" in text or "\x1b" in text or "\u202e" in text for text in texts)
    templates = [trace.hovertemplate or "" for trace in drawing.figure.data]
    assert not any("alert" in template for template in templates)

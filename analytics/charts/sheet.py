"""The sheet that a chart is drawn on: shapes and text in, SVG out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

from gpu_flows.analytics.charts.layout import BOTTOM, FAINT, INK, LEFT, TOP, WIDTH


@dataclass(slots=True)
class Sheet:
    """A drawing under construction, with its title and subtitle."""

    title: str
    subtitle: str
    width: float
    height: float
    elements: list[str] = field(default_factory=list)

    def add(self, element: str) -> None:
        """Add an SVG element as it is."""
        self.elements.append(element)

    def rule(self, x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1.0) -> None:
        """Add a straight line."""
        path = f"M{pixels(x)} {pixels(y)}L{pixels(to_x)} {pixels(to_y)}"
        self.add(f'<path d="{path}" stroke="{colour}" stroke-width="{pixels(width)}"/>')

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", fill: str = INK, size: float = 12
    ) -> None:
        """Add a text."""
        place = f'x="{pixels(x)}" y="{pixels(y)}" text-anchor="{anchor}"'
        self.add(f'<text {place} fill="{fill}" font-size="{pixels(size)}">{_escape(text)}</text>')

    def rectangle(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        """Add a rectangle. The tip appears when the mouse points at it."""
        place = f'x="{pixels(x)}" y="{pixels(y)}" width="{pixels(width)}" height="{pixels(height)}"'
        title = f"<title>{_escape(tip)}</title>" if tip else ""
        self.add(f"<rect {place} {style}>{title}</rect>")

    def svg(self) -> str:
        """Return the finished drawing."""
        width, height = pixels(self.width), pixels(self.height)
        left, title, subtitle = pixels(LEFT), _escape(self.title), _escape(self.subtitle)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" font-family="system-ui, Helvetica, Arial, sans-serif">',
                f"<title>{title}</title>",
                f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
                f'<text x="{left}" y="28" font-size="17" font-weight="600" fill="{INK}">{title}</text>',
                f'<text x="{left}" y="47" font-size="12" fill="{FAINT}">{subtitle}</text>',
                *self.elements,
                "</svg>\n",
            ]
        )


def draw_empty_chart(title: str, reason: str) -> str:
    """Return a chart that only says why there is nothing to show."""
    return Sheet(title, reason, WIDTH, TOP + BOTTOM).svg()


def pixels(length: float) -> str:
    """Format a length, to a tenth of a pixel."""
    return f"{length:.1f}".removesuffix(".0")


def printable(text: str) -> str:
    """Replace characters that XML does not allow or that cannot be read by a dot."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def _escape(text: str) -> str:
    return escape(printable(text))


def svg_path(points: Iterable[tuple[float, float]]) -> str:
    """Return a path through the points, without those that round to the same place as the one before."""
    drawn = (place for place, _ in groupby(f"{pixels(x)} {pixels(y)}" for x, y in points))
    return "M" + "L".join(drawn)

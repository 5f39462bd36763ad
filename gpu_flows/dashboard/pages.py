"""Fills in the templates of the dashboard, which extend those of the report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment

from gpu_flows.analytics.pages import STYLES, make_environment, read_asset
from gpu_flows.common.quantities import format_duration
from gpu_flows.worker.status_text import (
    HELD_BACK,
    describe_memory,
    describe_progress,
    describe_time,
    mark_time,
    measure_wait,
    place_devices,
)

SCRIPTS = ("page.js", "dashboard.js")
NEVER = {"impossible", "no_devices", "unhealthy"}  # unless devices come or the job asks for less
NEAR_S = 600.0  # from now, for which seconds matter
OWN = {"dashboard.js": "text/javascript", "dashboard.css": "text/css"}


@cache
def _environment() -> Environment:
    environment = make_environment(Path(__file__).parent / "templates")
    environment.globals.update(
        duration=format_duration,
        zip=zip,
        signed=format_signed,
        clock=format_clock,
        clock_seconds=format_clock_seconds,
        reason_class=classify_reason,
        number=format_number,
        describe_memory=describe_memory,
        describe_time=describe_time,
        describe_progress=describe_progress,
        mark_time=mark_time,
        measure_wait=measure_wait,
        place_devices=place_devices,
    )
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template: a page, or a fragment of one."""
    page = {"inline": False, "scripts": SCRIPTS, "styles": STYLES, "policy": ""}
    return _environment().get_template(template).render(**page, **values)


def format_clock(seconds: float | None, now: float) -> str:
    """`13:55`; `13:55:20` if it is near, and with the day if that is another one: `Fri 13:55`."""
    if seconds is None:
        return "–"
    if abs(seconds - now) < NEAR_S:
        return format_clock_seconds(seconds)
    then, today = time.localtime(seconds), time.localtime(now)
    day = (then.tm_year, then.tm_yday)
    if day == (today.tm_year, today.tm_yday):
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if abs(seconds - now) < 6 * 86_400 else "%d %b %H:%M", then)


def format_clock_seconds(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def classify_reason(code: str) -> str:
    """Return what a reason's colour says: whether the job may not start, never can, or waits for its turn."""
    if code in HELD_BACK:
        return "held"
    return "never" if code in NEVER else "turn"


def format_number(value: float | None, unit: str = "", digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def format_signed(percent: float | None) -> str:
    """`−12%`: a change, with its sign."""
    return "–" if percent is None else f"{percent:+.0f}%".replace("-", "−")


@dataclass(frozen=True)
class Asset:
    """A file that pages link to."""

    text: str
    kind: str

    @cached_property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()[:24]


@cache
def find_asset(name: str) -> Asset:
    """Return a script or the styles. Raises KeyError for any other name."""
    if name in OWN:
        path = files("gpu_flows.dashboard") / "static" / name
        return Asset(path.read_text(encoding="utf-8"), OWN[name])
    return Asset(read_asset(name), "text/css" if name.endswith(".css") else "text/javascript")

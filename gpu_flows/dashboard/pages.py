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
from gpu_flows.common.clock import describe_late
from gpu_flows.common.clock import describe_time as describe_clock
from gpu_flows.common.quantities import format_duration
from gpu_flows.schedulers.reasons import NEVER_FITS, POLICY, class_of
from gpu_flows.worker.status_text import (
    describe_memory,
    describe_progress,
    describe_time,
    mark_time,
    measure_wait,
    place_devices,
)

SCRIPTS = ("page.js", "dashboard.js")
OWN = {"dashboard.js": "text/javascript", "dashboard.css": "text/css"}


@cache
def _environment() -> Environment:
    environment = make_environment(Path(__file__).parent / "templates")
    environment.globals.update(
        duration=format_duration,
        zip=zip,
        signed=format_signed,
        clock=format_clock,
        late=describe_late,
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
    return "–" if seconds is None else describe_clock(seconds, now)


def format_clock_seconds(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def classify_reason(code: str) -> str:
    """Return what the colour of a reason says: it never fits, someone keeps it, or it waits for its turn."""
    return {NEVER_FITS: "never", POLICY: "held"}.get(class_of(code), "turn")


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

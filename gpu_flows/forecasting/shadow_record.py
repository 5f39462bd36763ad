"""The worker's side of the shadows: records what the child tells, and knows why a shadow does not plan."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gpu_flows.analytics.facts import ShadowDecided, ShadowProjected
from gpu_flows.schedulers.forecast.projection import Projection
from gpu_flows.schedulers.forecast.shadows import Verdict


class ShadowRecord:
    def __init__(self, pool: str, record: Callable[..., None], log: logging.Logger) -> None:
        self._pool, self._log = pool, log
        self._record: Callable[..., None] = record
        self._errors: dict[str, str] = {}

    def use(self, told: list[dict[str, Any]]) -> None:
        """Record what the child has told."""
        for each in told:
            if "errors" in each:
                self._note(each["errors"])
            elif "verdict" in each:
                verdict = Verdict(**each["verdict"])
                self._record(ShadowDecided.of(verdict, each["time"], self._pool, each["policy"]))
            else:
                projection = Projection(**each["projection"])
                self._record(ShadowProjected.of(projection, each["time"], self._pool, each["policy"]))

    def _note(self, errors: dict[str, str]) -> None:
        for name, error in errors.items():
            if error and self._errors.get(name) != error:
                self._log.warning("Shadow %r does not plan: %s", name, error)
        self._errors = errors

    def describe(self, name: str) -> dict[str, Any]:
        """Return what `policy show` shows of a shadow of this name, besides its figures."""
        known = name in self._errors
        return {"name": name, "plans": known and not self._errors[name], "error": self._errors.get(name, "")}

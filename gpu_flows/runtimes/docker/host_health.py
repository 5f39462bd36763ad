"""The pulse of one Docker host: does it answer, what of ours is there, how do the containers do.

A thread per host asks every other second. It is the backstop for whatever the followers miss, and the
only one who says that a host is down or up again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from docker import APIClient
from docker.errors import APIError

from gpu_flows.runtimes.docker.container import INSTALLATION
from gpu_flows.runtimes.docker.host import PULSE_S, Host, HostAway

EVERY_S = 2.0
MISSES = 2  # in a row make a host that is down
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Beat:
    """What one look at a host showed."""

    containers: list[dict[str, Any]] = field(default_factory=list)  # ours, as Docker lists them
    trouble: str = ""  # why it is down


@dataclass(slots=True)
class Vitals:
    """How one container does."""

    activity: float = 0.0  # 0 to 100 of one processor
    peak_memory_mb: float | None = None
    cpu: tuple[float, float] | None = None  # seconds used, at


class Pulse:
    """`on_beat` is called in the pulse's thread. `first` is set after the first look, whatever it showed."""

    def __init__(self, host: Host, installation: str, on_beat: Callable[[Beat], None]) -> None:
        self._host, self._label, self._on_beat = host, f"{INSTALLATION}={installation}", on_beat
        self.first = threading.Event()
        self.vitals: dict[str, Vitals] = {}  # by container name, until it is removed
        self.trouble = "not asked yet"
        self.down_since: float | None = None  # by the monotonic clock
        self._misses = 0
        self._closed = threading.Event()
        self._asked = threading.Event()
        threading.Thread(target=self._run, name=f"pulse-{host.name}", daemon=True).start()

    def silent_s(self) -> float:
        """For how long the host has been down."""
        return time.monotonic() - self.down_since if self.down_since else 0.0

    def ask_now(self) -> None:
        """Somebody has reason to doubt the host."""
        self._asked.set()

    def ours(self, api: APIClient) -> list[dict[str, Any]]:
        """Every container of ours, running or not."""
        return list(api.containers(all=True, filters={"label": self._label}))

    def close(self) -> None:
        self._closed.set()
        self._asked.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._look()
            self.first.set()
            self._asked.wait(EVERY_S)
            self._asked.clear()

    def _look(self) -> None:
        try:
            containers = self._host.ask(self.ours, PULSE_S)
        except (HostAway, APIError) as error:
            self._misses += 1
            if self._misses >= MISSES or not self.first.is_set():
                self._host.forget_info()
                self.trouble = f"Docker host {self._host.name} does not answer: {error}"
                self.down_since = self.down_since or time.monotonic()
                self._on_beat(Beat(trouble=self.trouble))
            return
        self._misses, self.trouble, self.down_since = 0, "", None
        self._on_beat(Beat(containers))
        self._examine({each["Names"][0].lstrip("/"): each["State"] for each in containers if each["Names"]})

    def _examine(self, states: dict[str, str]) -> None:
        self.vitals = {name: self.vitals.get(name) or Vitals() for name in states}
        for name in [name for name, state in states.items() if state == "running"]:
            try:
                _update(self.vitals[name], self._host.ask(partial(_stats, name), PULSE_S))
            except HostAway:
                return  # whoever is away for one is away for all
            except (APIError, KeyError, TypeError):
                pass  # it has just ended


@dataclass(slots=True)
class Served:
    """A host and its pulse."""

    host: Host
    pulse: Pulse

    def close(self) -> None:
        self.pulse.close()
        self.host.close()


def _stats(container: str, api: APIClient) -> dict[str, Any]:
    return dict(api.stats(container, stream=False, one_shot=True))


def _update(vitals: Vitals, stats: dict[str, Any]) -> None:
    memory = stats["memory_stats"]
    used = memory["usage"] - (memory.get("stats") or {}).get("inactive_file", 0)
    peak = max(used, memory.get("max_usage", 0)) / _MB
    vitals.peak_memory_mb = round(max(vitals.peak_memory_mb or 0.0, peak), 1)
    now, seconds = time.monotonic(), stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
    if vitals.cpu and now > vitals.cpu[1]:
        vitals.activity = min(100.0, max(0.0, 100 * (seconds - vitals.cpu[0]) / (now - vitals.cpu[1])))
    vitals.cpu = (seconds, now)

"""Checks one Docker host every few seconds: whether it answers, and which of our containers it has.

Each host has a monitor with a thread of its own. Only the monitor decides that a host is down or up again.
Its list of containers also brings to light what the followers of single containers have missed.
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

from gpu_flows.runtimes.docker.host import HEALTH_CHECK_S, INSTALLATION, Host, HostUnreachable

CHECK_INTERVAL_S = 2.0
FAILURES_UNTIL_DOWN = 2  # in a row
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The result of one check."""

    containers: list[dict[str, Any]] = field(default_factory=list)  # ours, as Docker lists them
    trouble: str = ""  # why the host is down; empty if it is up


@dataclass(slots=True)
class ContainerUsage:
    """The processor and memory use of one container."""

    activity: float = 0.0  # percent of one processor, at most 100
    peak_memory_mb: float | None = None
    cpu: tuple[float, float] | None = None  # CPU seconds, and when they were read


class HealthMonitor:
    """Calls `on_report`, in its own thread, after each check that shows the host up or down."""

    def __init__(self, host: Host, installation: str, on_report: Callable[[HealthReport], None]) -> None:
        self._host, self._label, self._on_report = host, f"{INSTALLATION}={installation}", on_report
        self.first_check = threading.Event()  # set when the first check is done, whatever its result
        self.usage: dict[str, ContainerUsage] = {}  # by container name, until the container is removed
        self.trouble = "not checked yet"
        self._down_since: float | None = None  # by the monotonic clock
        self._failures = 0
        self._closed = threading.Event()
        self._wakeup = threading.Event()
        threading.Thread(target=self._run, name=f"health-{host.name}", daemon=True).start()

    def down_s(self) -> float:
        """Return for how many seconds the host has been down; 0 while it is up."""
        return time.monotonic() - self._down_since if self._down_since else 0.0

    def check_now(self) -> None:
        """Do the next check now, without waiting for the interval."""
        self._wakeup.set()

    def list_containers(self, api: APIClient) -> list[dict[str, Any]]:
        """Return every container of this installation, running or not."""
        return list(api.containers(all=True, filters={"label": self._label}))

    def close(self) -> None:
        self._closed.set()
        self._wakeup.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._check()
            self.first_check.set()
            self._wakeup.wait(CHECK_INTERVAL_S)
            self._wakeup.clear()

    def _check(self) -> None:
        try:
            containers = self._host.call_blocking(self.list_containers, HEALTH_CHECK_S)
        except (HostUnreachable, APIError) as error:
            self._failures += 1
            if self._failures >= FAILURES_UNTIL_DOWN or not self.first_check.is_set():
                self._host.reset()
                self.trouble = f"Docker host {self._host.name} does not answer: {error}"
                self._down_since = self._down_since or time.monotonic()
                self._on_report(HealthReport(trouble=self.trouble))
            return
        self._failures, self.trouble, self._down_since = 0, "", None
        self._on_report(HealthReport(containers))
        self._measure_usage(
            {item["Names"][0].lstrip("/"): item["State"] for item in containers if item["Names"]}
        )

    def _measure_usage(self, states: dict[str, str]) -> None:
        self.usage = {name: self.usage.get(name) or ContainerUsage() for name in states}
        for name in [name for name, state in states.items() if state == "running"]:
            try:
                stats = self._host.call_blocking(partial(_read_stats, name), HEALTH_CHECK_S)
                _update_usage(self.usage[name], stats)
            except HostUnreachable:
                return  # the other containers' calls would time out as well
            except (APIError, KeyError, TypeError):
                pass  # the container has just ended


@dataclass(slots=True)
class MonitoredHost:
    """A host together with its monitor."""

    host: Host
    health: HealthMonitor

    def close(self) -> None:
        self.health.close()
        self.host.close()


def _read_stats(container: str, api: APIClient) -> dict[str, Any]:
    return dict(api.stats(container, stream=False, one_shot=True))


def _update_usage(usage: ContainerUsage, stats: dict[str, Any]) -> None:
    memory = stats["memory_stats"]
    used = memory["usage"] - (memory.get("stats") or {}).get("inactive_file", 0)
    peak = max(used, memory.get("max_usage", 0)) / _MB
    usage.peak_memory_mb = round(max(usage.peak_memory_mb or 0.0, peak), 1)
    now, seconds = time.monotonic(), stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
    if usage.cpu and now > usage.cpu[1]:
        usage.activity = min(100.0, max(0.0, 100 * (seconds - usage.cpu[0]) / (now - usage.cpu[1])))
    usage.cpu = (seconds, now)

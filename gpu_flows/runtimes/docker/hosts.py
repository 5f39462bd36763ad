"""The Docker hosts of a pool: the configured ones, and removed ones on which containers still run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable

from gpu_flows.blocks.docker import ContainerRules, DockerHost
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.runtimes.docker.host_health import HealthMonitor, HealthReport, MonitoredHost


class DockerHosts:
    """Opens, monitors and closes hosts as the cluster block changes.

    `on_report` gets every health report of a configured host, `on_host` only the changes: a host's name
    with the reason why it is down, or with an empty text when it is up. Both are called in the event loop.
    """

    def __init__(
        self,
        installation: str,
        on_report: Callable[[MonitoredHost, HealthReport], None],
        on_host: Callable[[str, str], None],
    ) -> None:
        self._installation, self._on_report, self._on_host = installation, on_report, on_host
        self._configured: dict[str, MonitoredHost] = {}  # by name
        self._retired: list[MonitoredHost] = []  # no longer configured, but with containers that still run
        self._troubles: dict[str, str] = {}  # as last reported
        self.rules = ContainerRules()
        self.is_configured = False
        self.one_for_all = False  # a single host serves every node, whatever the node's name

    def configure(self, hosts: Iterable[DockerHost], rules: ContainerRules, one_for_all: bool) -> None:
        """Use these hosts from now on. A host that is removed or changed is retired."""
        self.rules, self.one_for_all, self.is_configured = rules, one_for_all, True
        wanted = {host.name: host for host in hosts}
        for name, monitored in list(self._configured.items()):
            if wanted.get(name) != monitored.host.settings:
                self._retired.append(self._configured.pop(name))
        for name, settings in wanted.items():
            if name not in self._configured:
                self._troubles.pop(name, None)
                self._configured[name] = self._open(settings)

    def _open(self, settings: DockerHost) -> MonitoredHost:
        host, loop = Host(settings), asyncio.get_running_loop()

        def pass_on(report: HealthReport) -> None:
            """Pass a report from the monitor's thread to the event loop."""
            with contextlib.suppress(RuntimeError):  # the loop is closing
                loop.call_soon_threadsafe(self._receive, host, report)

        return MonitoredHost(host, HealthMonitor(host, self._installation, pass_on))

    def _receive(self, host: Host, report: HealthReport) -> None:
        monitored = next((known for known in self._configured.values() if known.host is host), None)
        if monitored is None:
            return
        self._on_report(monitored, report)
        if self._troubles.get(host.name, "unknown") != report.trouble:
            self._troubles[host.name] = report.trouble
            self._on_host(host.name, report.trouble)

    def configured(self) -> list[MonitoredHost]:
        return list(self._configured.values())

    def find(self, node: str) -> MonitoredHost | None:
        """Return the host that serves a node."""
        return next(iter(self._configured.values()), None) if self.one_for_all else self._configured.get(node)

    def is_unmonitored(self, monitored: MonitoredHost, node: str) -> bool:
        """Whether no health report will list this host's containers again."""
        return monitored in self._retired and node not in self._configured

    def close_retired(self, in_use: Container[MonitoredHost]) -> None:
        """Close the retired hosts that are not in use."""
        for monitored in [retired for retired in self._retired if retired not in in_use]:
            self._retired.remove(monitored)
            monitored.close()

    def close(self) -> None:
        for monitored in [*self._configured.values(), *self._retired]:
            monitored.close()
        self._configured, self._retired = {}, []

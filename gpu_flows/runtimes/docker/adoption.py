"""Adopts the containers that an earlier worker launched, and removes those that are no longer needed.

A container carries its launch in its labels. If this worker does not know the attempt, another worker
launched it, and this worker follows it to its end. If it has not started, it is removed: that worker has lost
the lease, and its start must fail, even if the request is still on its way. Containers are found when the
worker starts (`find`) and in every health report of a host, for hosts that did not answer at first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from docker.errors import APIError, NotFound

from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, Found, Launch, LaunchError
from gpu_flows.runtimes.docker.checkpoints import CheckpointTransfer
from gpu_flows.runtimes.docker.container_follower import parse_time_ns
from gpu_flows.runtimes.docker.container_spec import container_name, is_same_attempt, read_listed_launch
from gpu_flows.runtimes.docker.container_start import has_started
from gpu_flows.runtimes.docker.host import Host, HostUnreachable
from gpu_flows.runtimes.docker.host_health import HealthReport, MonitoredHost
from gpu_flows.runtimes.docker.hosts import DockerHosts
from gpu_flows.runtimes.docker.running_containers import RunningContainers
from gpu_flows.runtimes.output import OutputSender
from gpu_flows.runtimes.output_buffer import OutputBuffer

log = logging.getLogger(__name__)

FIRST_CHECK_S = 20.0


class Adoption:
    """`on_found` gets the attempts that are found after `find`. Containers are adopted or removed only after
    the first `find`, and only while this worker may act for the pool."""

    def __init__(
        self,
        attempt_store: AttemptStore,
        installation: str,
        running: RunningContainers,
        sender: OutputSender,
        checkpoints: CheckpointTransfer,
        on_found: Callable[[Found], None],
        may_act: Callable[[], bool],
    ) -> None:
        self._attempt_store, self._installation = attempt_store, installation
        self._running, self._sender, self._checkpoints = running, sender, checkpoints
        self._on_found, self._may_act = on_found, may_act
        self._has_searched = False
        self._adopting = asyncio.Lock()
        self._unreadable: set[str] = set()  # containers that were reported as not known
        self._tasks: set[asyncio.Task[None]] = set()

    # -- when the worker starts ---------------------------------------------------------------

    async def find(self, hosts: DockerHosts) -> list[Found]:
        """Return the open attempts of the store and those that the hosts' containers show.

        A host that does not answer is assumed to run what the store states, until it answers or counts
        as lost.
        """
        if not hosts.is_configured:
            # The cluster block is invalid. Health reports bring the containers when it is fixed.
            self._has_searched = True
            return []
        checks = [monitored.health.first_check for monitored in hosts.configured()]
        await asyncio.gather(*(asyncio.to_thread(check.wait, FIRST_CHECK_S) for check in checks))
        found = []
        async with self._adopting:
            for _, launch in self._attempt_store.open_attempts():
                if launch.runtime == "docker" and self._is_unknown(launch):
                    found.append(await self._find_stored(launch, hosts.find(launch.node)))
            for monitored in [host for host in hosts.configured() if not host.health.trouble]:
                with contextlib.suppress(HostUnreachable, APIError):
                    for listed in await monitored.host.call(monitored.health.list_containers):
                        carried = self._read_launch(listed, monitored.host)
                        if not carried or not self._is_unknown(carried):
                            continue
                        is_created = listed["State"] == "created"
                        if is_created and not await self._remove_unless_started(monitored, listed):
                            continue
                        found.append(await self._adopt(carried, monitored))
        self._has_searched = True
        return found

    async def _find_stored(self, launch: Launch, monitored: MonitoredHost | None) -> Found:
        """Find the container of an attempt that an earlier worker put into the store."""
        ended = Found(launch, Attempt(launch, "", time.time()), alive=False)
        never_started = Found(launch, None, alive=False)
        if monitored is None:
            return ended  # its host is no longer configured
        try:
            inspected = await _inspect(monitored, launch)
            is_ours = is_same_attempt(launch, self._installation, inspected["Config"].get("Labels") or {})
            if is_ours and not has_started(inspected):  # the worker died between create and start
                await self.remove(monitored.host, inspected["Id"])
                return never_started
        except NotFound:
            is_ours = False
        except (HostUnreachable, APIError):
            is_ours = True
        if not is_ours:
            return ended if self._attempt_store.has_started(launch.id) else never_started
        return await self._adopt(launch, monitored)

    async def _adopt(self, launch: Launch, monitored: MonitoredHost) -> Found:
        """Follow a container that an earlier worker launched."""
        self._running.launching[launch.id] = monitored
        with contextlib.suppress(FileExistsError, LaunchError):
            self._attempt_store.create(launch)
        folder = self._attempt_store.folder(launch)
        buffer = OutputBuffer(launch, folder, tail_only=launch.handles_intents, adopted=True)
        started, alive = time.time(), True
        with contextlib.suppress(HostUnreachable, APIError):
            state = (await _inspect(monitored, launch))["State"]
            alive = bool(state["Running"])
            started = parse_time_ns(state["StartedAt"]) / 1e9 or started
        self._sender.add(launch.id, buffer)
        self._running.follow(launch, monitored, buffer)
        self._running.launching.pop(launch.id, None)
        return Found(launch, describe_attempt(launch, monitored, started), alive)

    def _is_unknown(self, launch: Launch) -> bool:
        return not self._running.knows(launch.id) and not self._attempt_store.has_ended(launch.id)

    # -- with every health report -------------------------------------------------------------

    def check_containers(self, monitored: MonitoredHost, report: HealthReport, keep_seconds: float) -> None:
        """Adopt the report's unknown containers, and remove those that are no longer needed."""
        if report.trouble or not self._has_searched or not self._may_act():
            return
        for listed in report.containers:
            if launch := self._read_launch(listed, monitored.host):
                self._check_container(launch, monitored, listed, keep_seconds)

    def _check_container(
        self, launch: Launch, monitored: MonitoredHost, listed: dict[str, Any], keep_seconds: float
    ) -> None:
        remove = partial(self.remove_soon, monitored.host, listed["Id"])
        if self._is_unknown(launch):
            if listed["State"] != "created":
                self._spawn(self._adopt_late(launch, monitored))
            else:
                self._spawn(self._remove_late(monitored, listed))
        elif not self._running.knows(launch.id):
            # Its end was recorded. If it runs, it counted as lost, and its devices belong to other jobs now.
            with contextlib.suppress(OSError):
                folder = self._attempt_store.ended / launch.id
                ended = folder.stat().st_ctime  # the time of the move to `ended`
                is_old = time.time() - ended > keep_seconds
                if listed["State"] == "running" or (is_old and not self._checkpoints.needs_container(launch)):
                    remove()

    def _read_launch(self, listed: dict[str, Any], host: Host) -> Launch | None:
        """Return the launch of a listed container. Say once if it cannot be read."""
        launch = read_listed_launch(listed)
        if launch is None and listed["Id"] not in self._unreadable:
            self._unreadable.add(listed["Id"])
            name = ", ".join(listed.get("Names") or ()).lstrip("/")
            log.warning(
                "Container %s on host %s has this pool's label but cannot be read, so it is left alone and "
                "its devices count as free. If an older version of gpu-flows launched it, let it end, or "
                "remove it: docker rm -f %s",
                name,
                host.name,
                name,
            )
        return launch

    async def _adopt_late(self, launch: Launch, monitored: MonitoredHost) -> None:
        async with self._adopting:
            found = await self._adopt(launch, monitored) if self._is_unknown(launch) else None
        if found:
            self._on_found(found)

    async def _remove_late(self, monitored: MonitoredHost, listed: dict[str, Any]) -> None:
        await self._remove_unless_started(monitored, listed)

    async def _remove_unless_started(self, monitored: MonitoredHost, listed: dict[str, Any]) -> bool:
        """Remove a container that has not started. Returns whether it was started meanwhile: Docker then
        refuses a removal without force. After any other failure, the next health report tries again."""
        host, container = monitored.host, listed["Id"]
        try:
            await host.call(lambda api: api.remove_container(container, v=True))
        except (HostUnreachable, APIError) as error:
            if isinstance(error, APIError) and error.status_code == 409:
                with contextlib.suppress(HostUnreachable, APIError):
                    return has_started(await host.call(lambda api: api.inspect_container(container)))
        return False

    async def remove(self, host: Host, container: str) -> None:
        with contextlib.suppress(HostUnreachable, APIError):
            await host.call(lambda api: api.remove_container(container, force=True, v=True))

    def remove_soon(self, host: Host, container: str) -> None:
        self._spawn(self.remove(host, container))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def describe_attempt(launch: Launch, monitored: MonitoredHost, started: float) -> Attempt:
    """Return the attempt, with an identifier that names the worker's machine, the host and the container."""
    return Attempt(launch, f"{socket.gethostname()}:{monitored.host.name}/{container_name(launch)}", started)


async def _inspect(monitored: MonitoredHost, launch: Launch) -> dict[str, Any]:
    if monitored.health.trouble:
        raise HostUnreachable(monitored.health.trouble)  # without waiting for another timeout
    return dict(await monitored.host.call(lambda api: api.inspect_container(container_name(launch))))

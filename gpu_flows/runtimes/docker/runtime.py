"""The Docker runtime: launches attempts as containers, and reports how they end.

Each node of the cluster is served by one host. A launch is written to the attempt store, its container is
started (`container_start`), followed to its end (`container_follower`) and removed some time later
(`adoption`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from docker.errors import APIError

from gpu_flows.blocks.docker import ContainerRules, DockerHost
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, LaunchError, NodeUnreachable
from gpu_flows.runtimes.docker.adoption import Adoption, describe_attempt
from gpu_flows.runtimes.docker.checkpoints import (
    CheckpointTransfer,
    checkpoint_mounts,
    fetch_journal,
    is_mounted,
)
from gpu_flows.runtimes.docker.container_start import ContainerStart, StartUnconfirmed
from gpu_flows.runtimes.docker.host import Host, HostUnreachable
from gpu_flows.runtimes.docker.host_health import HealthReport, MonitoredHost
from gpu_flows.runtimes.docker.hosts import DockerHosts
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.runtimes.docker.rules import CONTAINER_FOLDER
from gpu_flows.runtimes.docker.running_containers import RunningContainer, RunningContainers
from gpu_flows.runtimes.docker.tar import make_tar
from gpu_flows.runtimes.entry import INTENT_FILE
from gpu_flows.runtimes.output import LogSink, OutputSender
from gpu_flows.runtimes.output_buffer import OutputBuffer

log = logging.getLogger(__name__)

DRAIN_S = 5.0
FIRST_USAGE_S = 0.3  # after a start: the memory use of a very short job is to be measured too


class DockerRuntime:
    """A `Runtime` whose attempts are containers on Docker hosts.

    `installation` is a label that separates its containers from those of other installations. `sink` receives
    what containers print. `on_found` is called for attempts that are found after `find`, `on_host` with a
    host's name when it goes down (with the reason) or comes up (with an empty text). Containers are
    adopted and removed only while this worker `may_act` for the pool, and kept while a job `will_resume`
    from the checkpoints in them.
    """

    def __init__(
        self,
        attempt_store: AttemptStore,
        installation: str,
        sink: LogSink,
        on_found: Callable[[Found], None] = lambda found: None,
        on_host: Callable[[str, str], None] = lambda name, trouble: None,
        may_act: Callable[[], bool] = lambda: True,
        will_resume: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        self._attempt_store, self.installation = attempt_store, installation
        self._checkpoints = CheckpointTransfer(attempt_store, will_resume)
        self._sender = OutputSender(sink)
        self._running = RunningContainers()
        self._mounts: dict[str, OpenMounts] = {}  # by attempt
        self._hosts = DockerHosts(installation, self._check_containers, on_host)
        self._adoption = Adoption(
            attempt_store, installation, self._running, self._sender, self._checkpoints, on_found, may_act
        )

    # -- hosts --------------------------------------------------------------------------------

    def configure_hosts(self, hosts: Iterable[DockerHost], rules: ContainerRules, one_for_all: bool) -> None:
        """Use these hosts from now on. Containers on other hosts are still followed to their end.

        With `one_for_all`, the only host serves every node, whatever the node's name.
        """
        self._hosts.configure(hosts, rules, one_for_all)
        self._hosts.close_retired(in_use=self._running.hosts())

    def hosts(self) -> list[Host]:
        return [monitored.host for monitored in self._hosts.configured()]

    def describe_trouble(self, node: str) -> str:
        """Return why the node's host is down; empty if it is up."""
        monitored = self._hosts.find(node)
        return monitored.health.trouble if monitored else ""

    def _check_containers(self, monitored: MonitoredHost, report: HealthReport) -> None:
        self._adoption.check_containers(monitored, report, self._hosts.rules.keep_seconds)

    # -- launch -------------------------------------------------------------------------------

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool] = lambda: True) -> Attempt:
        monitored = self._choose_host(launch)
        if running := self._running.by_attempt.get(launch.id):
            return describe_attempt(launch, running.monitored, time.time())
        if self._attempt_store.has_ended(launch.id):
            raise LaunchError(f"attempt {launch.id} has ended and cannot be launched again")
        with contextlib.suppress(FileExistsError):
            self._attempt_store.create(launch)
        folder = self._attempt_store.folder(launch)
        buffer = OutputBuffer(launch, folder, tail_only=launch.handles_intents)
        self._running.launching[launch.id] = monitored
        self._sender.add(launch.id, buffer)
        try:
            start = partial(self._start, monitored.host, launch, still_wanted, buffer)
            started = await monitored.host.run_long(start)
        except StartUnconfirmed as error:
            started = time.time()
            log.warning(
                "Unknown yet whether %s started on %s: %s", launch.job.name, monitored.host.name, error
            )
        except Exception as error:
            if isinstance(error, NodeUnreachable):
                monitored.health.check_now()
            await self._sender.drain(launch.id, DRAIN_S)
            self._sender.remove(launch.id)
            self._close_mounts(launch.id)
            # Not discarded: a container may remain under this attempt number, so it is not used again.
            self._attempt_store.mark_ended(launch)
            raise
        finally:
            self._running.launching.pop(launch.id, None)
        self._running.follow(launch, monitored, buffer, may_start=True)
        asyncio.get_running_loop().call_later(FIRST_USAGE_S, monitored.health.check_now)
        return describe_attempt(launch, monitored, started)

    def _choose_host(self, launch: Launch) -> MonitoredHost:
        monitored = self._hosts.find(launch.node)
        if monitored is None:
            raise LaunchError(f"no Docker host serves node {launch.node!r}; add it to the cluster block")
        if not self._hosts.one_for_all and len({device.node for device in launch.devices}) > 1:
            raise LaunchError("a container runs on one host: leave may_span_nodes off")
        if monitored.health.trouble:
            raise NodeUnreachable(monitored.health.trouble)
        return monitored

    def _start(
        self, host: Host, launch: Launch, still_wanted: Callable[[], bool], buffer: OutputBuffer
    ) -> float:
        """Start the container, and return when that was asked of Docker: a short one may have ended before
        Docker answers. Blocks."""
        rules, started = self._hosts.rules, time.time()

        def report(text: str) -> None:
            buffer.add_note(text, time.time_ns() // 1000)

        def prepare() -> None:
            if launch.checkpoints:
                self._checkpoints.prepare(launch, host, self._hosts.find, rules.lost_after_seconds, report)

        def mark_started() -> None:
            nonlocal started
            self._attempt_store.mark_started(launch)
            started = time.time()

        mounts = checkpoint_mounts(launch, host)
        opened = self._mounts.setdefault(launch.id, OpenMounts(rules.mount_roots, host.socket_path))
        ContainerStart(
            host,
            launch,
            self.installation,
            rules,
            still_wanted,
            prepare,
            mark_started,
            report,
            opened,
            mounts,
        ).run()
        return started

    def _close_mounts(self, attempt: str) -> None:
        if opened := self._mounts.pop(attempt, None):
            opened.close()

    # -- end ----------------------------------------------------------------------------------

    async def wait(self, attempt: Attempt) -> End:
        running = self._running.by_attempt.get(attempt.launch.id)
        if running is None:
            return End(detail="The container no longer exists, so its exit code is unknown.", lost=True)
        end = await self._wait_for_end(running)
        if usage := running.monitored.health.usage.get(running.name):
            end = replace(end, peak_memory_mb=usage.peak_memory_mb)
        if end.exit_code or running.launch.handles_intents:
            end = replace(end, tail=running.buffer.last_lines())
        if running.buffer.tail_only and (end.exit_code or end.lost):
            running.buffer.release_tail()
        launch, host = running.launch, running.monitored.host
        if launch.checkpoints and not end.lost and not is_mounted(launch, host):
            with contextlib.suppress(HostUnreachable, APIError):
                await host.call(lambda _: fetch_journal(host, launch))
        await self._sender.drain(launch.id, DRAIN_S)
        return end

    async def _wait_for_end(self, running: RunningContainer) -> End:
        """Return the container's end; if its host stays down for too long, that the container is lost."""
        health = running.monitored.health
        while not running.ended.done():
            await asyncio.wait({running.ended}, timeout=1.0)
            down_s = health.down_s()
            if not running.ended.done() and down_s > self._hosts.rules.lost_after_seconds:
                detail = f"{health.trouble} (for {down_s:.0f} s). It is unknown whether the job still runs."
                return End(detail=detail, lost=True)
        return running.ended.result()

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        launch = attempt.launch
        running = self._running.by_attempt.get(launch.id)
        if running is None:
            return
        running.may_start = False
        asked_ago = self._attempt_store.mark_stop_requested(launch, intent)
        if asked_ago is None:
            with contextlib.suppress(HostUnreachable, APIError):
                await running.monitored.host.call(lambda _: _request_stop(running, intent))
        await asyncio.wait({running.ended}, timeout=max(0.0, launch.grace_s - (asked_ago or 0.0)))
        while not running.ended.done() and launch.id in self._running.by_attempt:
            with contextlib.suppress(HostUnreachable, APIError):
                await running.monitored.host.call(lambda api: api.kill(running.name, "SIGKILL"))
            await asyncio.wait({running.ended}, timeout=2.0)

    def forget(self, launch: Launch) -> None:
        running = self._running.forget(launch.id)
        is_unmonitored = running and self._hosts.is_unmonitored(running.monitored, launch.node)
        if running and is_unmonitored and not self._checkpoints.needs_container(launch):
            self._adoption.remove_soon(running.monitored.host, running.name)
        self._sender.remove(launch.id)
        self._close_mounts(launch.id)
        self._attempt_store.mark_ended(launch)
        self._hosts.close_retired(in_use=self._running.hosts())

    async def find(self) -> list[Found]:
        return await self._adoption.find(self._hosts)

    def unfollow_all(self) -> None:
        """Stop following all containers. The next `find` returns those whose end has not been recorded."""
        for attempt in list(self._running.by_attempt):
            self._running.forget(attempt)

    # -- observation and shutdown -------------------------------------------------------------

    def sample_activity(self) -> dict[str, float]:
        activity = {}
        for running in list(self._running.by_attempt.values()):  # a copy: this runs in another thread
            if usage := running.monitored.health.usage.get(running.name):
                activity[running.launch.job.id] = usage.activity
        return activity

    def read_output(self, launch: Launch) -> list[str]:
        running = self._running.by_attempt.get(launch.id)
        return running.buffer.take_new() if running else []

    async def kill_all(self) -> None:
        """Remove all running containers without a grace period."""
        containers = self._running.by_attempt.values()
        await asyncio.gather(
            *(self._adoption.remove(running.monitored.host, running.name) for running in containers)
        )

    async def close(self) -> None:
        """Stop following. Containers go on running, and the next worker adopts them."""
        self._running.close()
        for attempt in list(self._mounts):
            self._close_mounts(attempt)
        self._adoption.close()
        await self._sender.close()
        self._hosts.close()


def _request_stop(running: RunningContainer, intent: Intent) -> None:
    """Signal the container. Retried although the signal may then arrive twice: a job that gets none is
    killed without having saved its work."""
    host, signal = running.monitored.host, "SIGTERM"
    if running.launch.handles_intents:
        signal = "SIGUSR1"
        tar = make_tar({INTENT_FILE: intent.encode()})
        host.retry_blocking(lambda api: api.put_archive(running.name, CONTAINER_FOLDER, tar))
    host.retry_blocking(lambda api: api.kill(running.name, signal))

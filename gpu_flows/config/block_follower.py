"""Applies the pool's blocks while jobs run: the policy, the protection of jobs, and the devices.

An invalid block changes nothing. The present configuration stays, and the reason is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import PrefectClient
from prefect.events import emit_event

from gpu_flows.blocks import GpuCluster
from gpu_flows.config.pool_blocks import BadBlock, BlockNames, PolicyChoice, read_cluster, read_policy
from gpu_flows.devices.base import DeviceError, DeviceSource, Reading
from gpu_flows.devices.sampler import Sampler
from gpu_flows.devices.sources import open_devices
from gpu_flows.devices.telemetry import Telemetry
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.schedulers.model import Node
from gpu_flows.schedulers.policy import PolicyError
from gpu_flows.schedulers.protection import Protection

if TYPE_CHECKING:
    from gpu_flows.runtimes.docker.runtime import DockerRuntime

RETRY_DEVICES_S = 60.0


class BlockFollower:
    def __init__(
        self,
        client: PrefectClient,
        pool: str,
        dispatcher: Dispatcher,
        containers: DockerRuntime,
        on_cluster: Callable[[GpuCluster], None],
        record: Callable[..., None],
        log: logging.Logger,
    ) -> None:
        self._client, self._pool, self._dispatcher, self._log = client, pool, dispatcher, log
        self._containers, self._on_cluster = containers, on_cluster
        self._engine = dispatcher.engine
        self._telemetry = Telemetry(pool, dispatcher.engine, dispatcher.runtime, record)
        self._last_choice: PolicyChoice | None = None  # the last content of the scheduler block, valid or not
        self._active_choice: PolicyChoice | None = None  # the last valid content
        self._cluster: GpuCluster | None = None
        self._retry_devices_at = 0.0
        self._source: DeviceSource | None = None
        self._sampler: Sampler | None = None
        self._applying = asyncio.Lock()
        self.sample_s = 1.0
        self.policy_error = ""  # why the scheduler block is not applied
        self.cluster_error = ""  # why the cluster block is not applied

    @property
    def policy_options(self) -> dict[str, Any]:
        """The options of the active policy."""
        return dict(self._active_choice.options) if self._active_choice else {}

    @property
    def missing_devices(self) -> str:
        """Why some devices of the cluster are unknown; empty if all are known."""
        return self._source.problem if self._source else ""

    @property
    def readings(self) -> dict[str, Reading]:
        """The latest reading of each device."""
        return self._telemetry.latest

    async def apply(self, names: BlockNames) -> None:
        """Read the blocks, and apply those that have changed."""
        async with self._applying:
            await self._apply_cluster(names.cluster)
            await self._apply_policy(names.scheduler)

    async def close(self) -> None:
        if self._sampler:
            await asyncio.to_thread(self._sampler.close)
        if self._source:
            self._source.close()

    # -- the policy ---------------------------------------------------------------------------

    async def _apply_policy(self, block: str) -> None:
        """Swap the policy if the block names another one. Saving an unchanged block again retries a policy
        that had failed."""
        choice = await read_policy(self._client, block)
        self._apply_protection(choice.protection)
        retry_failed = choice != self._last_choice and bool(self._engine.policy_error)
        if choice.is_same_policy(self._last_choice) and not retry_failed:
            return
        before = self._active_choice.name if self._active_choice else ""
        self._last_choice = choice
        try:
            policy = choice.make()
        except PolicyError as error:
            self.policy_error = str(error)
            self._dispatcher.record_swap(before, choice.name, choice.options, str(error))
            self._log.error("Keeping policy %r: %s", self._engine.policy.name, error)
        else:
            self.policy_error, self._active_choice = "", choice
            self._dispatcher.swap(policy, choice.options, before)
            self._log.info("The policy is now %r with %s.", policy.name, choice.options or "its defaults")
        emit_event(
            "gpu-flows.policy.refused" if self.policy_error else "gpu-flows.policy.swapped",
            resource={"prefect.resource.id": f"gpu-flows.pool.{self._pool}"},
            payload={"from": before, "to": choice.name, "error": self.policy_error},
        )

    def _apply_protection(self, protection: Protection | None) -> None:
        """Change how jobs are protected. An invalid value is ignored; the UI does not accept one."""
        if protection is not None and protection != self._engine.protection:
            self._engine.set_protection(protection)
            self._log.info("Jobs are now protected from preemption by %s.", protection)
            self._dispatcher.wake()

    # -- the devices --------------------------------------------------------------------------

    async def _apply_cluster(self, block: str) -> None:
        """Open the devices of the cluster block if it has changed. After a failure, the next try waits a
        while, so that probes of a driver that hangs do not pile up."""
        try:
            cluster = await read_cluster(self._client, block)
            if cluster == self._cluster and time.monotonic() < self._retry_devices_at:
                return
            self._cluster, self._retry_devices_at = cluster, float("inf")
            self._containers.configure_hosts(
                cluster.docker_hosts, cluster.containers, one_for_all=not cluster.hosts
            )
            self._on_cluster(cluster)
            source, nodes = await asyncio.to_thread(
                open_devices,
                cluster,
                self._telemetry.load,
                self._containers.hosts(),
                self._containers.installation[:8],
                self.sample_s,
            )
        except (BadBlock, DeviceError, ValueError) as error:
            self._retry_devices_at = time.monotonic() + RETRY_DEVICES_S
            message = f"The devices stay as they are: {error}"
            if self.cluster_error != message:
                self.cluster_error = message
                self._log.error("%s", message)
            return
        await self.close()
        self._source, self.cluster_error = source, ""
        self._use_nodes(nodes)
        loop = asyncio.get_running_loop()
        self._sampler = Sampler(source, self.sample_s, lambda at, readings: self._pass_on(loop, at, readings))
        self._dispatcher.wake()

    def _pass_on(self, loop: asyncio.AbstractEventLoop, at: float, readings: list[Reading]) -> None:
        """Pass readings from the sampler's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closing
            loop.call_soon_threadsafe(self._use_readings, at, readings)

    def _use_nodes(self, nodes: list[Node]) -> None:
        self._telemetry.set_nodes(nodes, time.time())
        for node in nodes:
            trouble = self._containers.describe_trouble(node.name)
            self._engine.set_node(node.name, not trouble, trouble)

    def _use_readings(self, at: float, readings: list[Reading]) -> None:
        if self._source and (nodes := self._source.changed_nodes()):
            self._use_nodes(nodes)
        self._telemetry.add_readings(at, readings)
        self._dispatcher.wake()

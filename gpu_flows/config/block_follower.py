"""What a pool's blocks say, followed while jobs run: the policy that decides, the devices there are.

A block that names nonsense changes nothing: what was there before stays, and the reason is shown.
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
        self._choice: PolicyChoice | None = None  # the last that the scheduler block was seen to name
        self._in_force: PolicyChoice | None = None  # the last that made sense
        self._cluster: GpuCluster | None = None
        self._retry_devices_at = 0.0
        self._source: DeviceSource | None = None
        self._sampler: Sampler | None = None
        self._one_at_a_time = asyncio.Lock()
        self.sample_s = 1.0
        self.refused_edit = ""  # why the scheduler block is not followed
        self.trouble = ""  # why the cluster block is not followed

    @property
    def options(self) -> dict[str, Any]:
        """Of the policy in force."""
        return dict(self._in_force.options) if self._in_force else {}

    @property
    def missing(self) -> str:
        """Why some of the devices are not known."""
        return self._source.problem if self._source else ""

    @property
    def readings(self) -> dict[str, Reading]:
        return self._telemetry.latest

    async def follow(self, names: BlockNames) -> None:
        """Do as the blocks say, if they say something new."""
        async with self._one_at_a_time:
            await self._follow_cluster(names.cluster)
            await self._follow_policy(names.scheduler)

    async def close(self) -> None:
        if self._sampler:
            await asyncio.to_thread(self._sampler.close)
        if self._source:
            self._source.close()

    # -- the policy ---------------------------------------------------------------------------

    async def _follow_policy(self, block: str) -> None:
        """Saving the block once more gives a policy that was put aside another chance."""
        choice = await read_policy(self._client, block)
        self._follow_protection(choice.protection)
        another_chance = choice != self._choice and bool(self._engine.policy_error)
        if choice.says_the_same_as(self._choice) and not another_chance:
            return
        before = self._in_force.name if self._in_force else ""
        self._choice = choice
        try:
            policy = choice.make()
        except PolicyError as error:
            self.refused_edit = str(error)
            self._dispatcher.note_swap(before, choice.name, choice.options, str(error))
            self._log.error("Keeping policy %r: %s", self._engine.policy.name, error)
        else:
            self.refused_edit, self._in_force = "", choice
            self._dispatcher.swap(policy, choice.options, before)
            self._log.info("Policy is %r now, with %s.", policy.name, choice.options or "its defaults")
        emit_event(
            "gpu-flows.policy.refused" if self.refused_edit else "gpu-flows.policy.swapped",
            resource={"prefect.resource.id": f"gpu-flows.pool.{self._pool}"},
            payload={"from": before, "to": choice.name, "error": self.refused_edit},
        )

    def _follow_protection(self, protection: Protection | None) -> None:
        """What makes no sense changes nothing. The server checks the form, so nobody gets here by it."""
        if protection is not None and protection != self._engine.protection:
            self._engine.protect(protection)
            self._log.info("Jobs are protected from preemption now by %s.", protection)
            self._dispatcher.wake()

    # -- the devices --------------------------------------------------------------------------

    async def _follow_cluster(self, block: str) -> None:
        """A driver that does not answer is asked again only now and then, lest stuck probes pile up."""
        try:
            cluster = await read_cluster(self._client, block)
            if cluster == self._cluster and time.monotonic() < self._retry_devices_at:
                return
            self._cluster, self._retry_devices_at = cluster, float("inf")
            self._containers.serve(cluster.docker_hosts, cluster.containers, serves_all=not cluster.hosts)
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
            if self.trouble != f"The devices stay as they are: {error}":
                self.trouble = f"The devices stay as they are: {error}"
                self._log.error("%s", self.trouble)
            return
        await self.close()
        self._source, self.trouble = source, ""
        self._adopt(nodes)
        loop = asyncio.get_running_loop()
        self._sampler = Sampler(source, self.sample_s, lambda at, got: self._in_loop(loop, at, got))
        self._dispatcher.wake()

    def _in_loop(self, loop: asyncio.AbstractEventLoop, at: float, readings: list[Reading]) -> None:
        """Called in the sampler's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closing
            loop.call_soon_threadsafe(self._take, at, readings)

    def _adopt(self, nodes: list[Node]) -> None:
        self._telemetry.set_nodes(nodes, time.time())
        for node in nodes:
            trouble = self._containers.trouble_of(node.name)
            self._engine.set_node(node.name, not trouble, trouble)

    def _take(self, at: float, readings: list[Reading]) -> None:
        if self._source and (nodes := self._source.changed_nodes()):
            self._adopt(nodes)
        self._telemetry.add_readings(at, readings)
        self._dispatcher.wake()

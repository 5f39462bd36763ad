"""Applies the pool's blocks while jobs run: the policy, the protection of jobs, and the devices.

An invalid block changes nothing. The present configuration stays, and the reason is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import httpx
from prefect.blocks.core import Block
from prefect.client.orchestration import PrefectClient
from prefect.events import emit_event

from gpu_flows.analytics.facts import ProtectionSet
from gpu_flows.blocks import GpuCluster, GpuScheduler
from gpu_flows.common.retry import Backoff
from gpu_flows.config.paths import pool_folder
from gpu_flows.config.pool_blocks import (
    BadBlock,
    BlockNames,
    PolicyChoice,
    read_cluster,
    read_policy,
    renew_form,
)
from gpu_flows.devices.base import DeviceError, DeviceSource, Reading
from gpu_flows.devices.sampler import Sampler
from gpu_flows.devices.simulated_memory import FOLDER, SimulatedMemory
from gpu_flows.devices.sources import open_devices
from gpu_flows.devices.telemetry import Telemetry
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.schedulers.model import Node
from gpu_flows.schedulers.network.tables import REALISTIC, load_network
from gpu_flows.schedulers.policy import Policy, PolicyError
from gpu_flows.schedulers.policy_choice import describe_options
from gpu_flows.schedulers.prediction.options import PredictionOptions
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.reasons import DRAINED

if TYPE_CHECKING:
    from gpu_flows.runtimes.docker.runtime import DockerRuntime

RETRY_DEVICES = Backoff(first_s=5.0, factor=2.0, most_s=60.0)


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
        on_prediction: Callable[[PredictionOptions], None] = lambda options: None,
        on_readings: Callable[[list[Reading]], None] = lambda readings: None,
    ) -> None:
        self._client, self._pool, self._dispatcher, self._log = client, pool, dispatcher, log
        self._containers, self._on_cluster, self._on_prediction = containers, on_cluster, on_prediction
        self._on_readings, self._record = on_readings, record
        self._engine = dispatcher.engine
        memory = SimulatedMemory(pool_folder(pool) / FOLDER)
        self._telemetry = Telemetry(pool, dispatcher.engine, dispatcher.runtime, record, memory)
        self._last_choice: PolicyChoice | None = None  # the last content of the scheduler block, valid or not
        self._active: Policy | None = None  # the policy of the last valid content
        self._cluster: GpuCluster | None = None  # the last valid content of the cluster block
        self._is_open = False  # whether its devices are
        self._drained: set[str] = set()
        self._recorded_protection: Protection | None = None
        self._network = REALISTIC  # the network table in force
        self._engine.set_network(load_network(REALISTIC).slowdown)
        self._retry_devices_at = 0.0
        self._pauses = RETRY_DEVICES.pauses()
        self._forms_renewed = False
        self._source: DeviceSource | None = None
        self._sampler: Sampler | None = None
        self._applying = asyncio.Lock()
        self.sample_s = 1.0
        self.is_leading: Callable[[], bool] = lambda: True  # whether this worker acts for the pool
        self.policy_error = ""  # why the scheduler block is not applied
        self.policy_saved: datetime | None = None  # when the content was saved that these concern
        self.shadows: dict[str, dict[str, Any]] = {}  # the options of the policies that plan beside
        self.shadows_error = ""  # why the block names none
        self.cluster_error = ""  # why the cluster block is not applied
        self.unknown_drained = ""  # which nodes it drains that there are not
        self.network_error = ""  # why its network table is not applied

    @property
    def policy_options(self) -> dict[str, Any]:
        """All options of the active policy, also those that the block leaves out."""
        return self._active.options.model_dump(mode="json") if self._active else {}

    @property
    def network(self) -> str:
        """The network table in force."""
        return self._network

    @property
    def missing_devices(self) -> str:
        """Why some devices of the cluster are unknown; empty if all are known."""
        return self._source.problem if self._source else ""

    @property
    def readings(self) -> dict[str, Reading]:
        """The latest reading of each device."""
        return self._telemetry.latest

    def why_unusable(self, node: str) -> str:
        """Why no job starts on the node; empty if jobs do."""
        return self._containers.describe_trouble(node) or (DRAINED if node in self._drained else "")

    async def apply(self, names: BlockNames) -> None:
        """Read the blocks, and apply those that have changed."""
        async with self._applying:
            await self._renew_forms(names)
            await self._apply_cluster(names.cluster)
            await self._apply_policy(names.scheduler)

    async def _renew_forms(self, names: BlockNames) -> None:
        """Once, give blocks that an older version saved the form of this one."""
        if self._forms_renewed:
            return
        self._forms_renewed = True
        kinds: list[tuple[str, type[Block]]] = [(names.scheduler, GpuScheduler), (names.cluster, GpuCluster)]
        for name, kind in kinds:
            try:
                if await renew_form(self._client, name, kind):
                    self._log.info("%s block %r now has this version's form.", kind.__name__, name)
            except Exception as error:  # the old form still works
                self._log.warning("The form of block %r could not be renewed: %s", name, error)

    async def close(self) -> None:
        if self._sampler:
            await asyncio.to_thread(self._sampler.close)
        if self._source:
            self._source.close()

    # -- the policy ---------------------------------------------------------------------------

    async def _apply_policy(self, block: str) -> None:
        """Swap the policy if the block names another one or other options. Saving an unchanged block again
        retries a policy that had failed."""
        choice = await read_policy(self._client, block)
        self._apply_protection(choice.protection)
        if choice.prediction is not None:
            self._on_prediction(choice.prediction)
        failed = self._engine.policy_error or self.policy_error
        retry_failed = choice != self._last_choice and bool(failed)
        if retry_failed or not choice.is_same_policy(self._last_choice):
            await self._swap(choice, retry_failed)
        self.shadows, self.shadows_error = choice.shadows, choice.shadows_error
        if self.policy_saved != choice.saved:
            self.policy_saved = choice.saved
            self._dispatcher.wake()  # with the next plan, the shadows are told

    async def _swap(self, choice: PolicyChoice, retry_failed: bool) -> None:
        before = self._active.name if self._active else ""
        policy, self.policy_error = await self._open_policy(choice)
        self._last_choice = choice
        if policy is None:
            self._dispatcher.record_swap(before, choice.name, choice.options, self.policy_error)
            self._log.error("Keeping policy %r: %s", self._engine.policy.name, self.policy_error)
        else:
            if not retry_failed and self._active and _are_same(policy, self._active):
                policy.close()
                return  # a UI may leave out options that have their defaults
            self._active = policy
            options = policy.options.model_dump(mode="json")
            self._dispatcher.swap(policy, options, before)
            self._log.info("The policy is now %r with %s.", policy.name, describe_options(options))
        emit_event(
            "gpu-flows.policy.refused" if self.policy_error else "gpu-flows.policy.swapped",
            resource={"prefect.resource.id": f"gpu-flows.pool.{self._pool}"},
            payload={"from": before, "to": choice.name, "error": self.policy_error},
        )

    async def _open_policy(self, choice: PolicyChoice) -> tuple[Policy | None, str]:
        """Return the policy, or the reason why there is none."""
        try:
            choice.check()
            is_new_choice = self._last_choice is not None
            return await self._dispatcher.open_policy(choice.name, choice.options, is_new_choice), ""
        except PolicyError as error:
            return None, str(error)
        except Exception as error:  # for instance, the machine has no memory for the policy's process
            reason = f"opening policy {choice.name!r} raised {type(error).__name__}: {error}"
            return None, f"{reason}. Save the block again to retry."

    def _apply_protection(self, protection: Protection | None) -> None:
        """Change how jobs are protected. An invalid value is ignored; the UI does not accept one."""
        if protection is not None and protection != self._engine.protection:
            self._engine.set_protection(protection)
            self._log.info("Jobs are now protected from preemption by %s.", protection)
            self._dispatcher.wake()
        if self._engine.protection != self._recorded_protection:
            in_force = self._recorded_protection = self._engine.protection
            limits = in_force.min_run_seconds, in_force.most_preemptions
            self._record(ProtectionSet(time.time(), self._pool, *limits))

    # -- the devices --------------------------------------------------------------------------

    async def _apply_cluster(self, block: str) -> None:
        """Open the devices of the cluster block if it has changed. After a failure the old devices stay, and
        the next try waits a while, so that probes of a driver that hangs do not pile up."""
        try:
            cluster = await read_cluster(self._client, block)
            # A change of these alone opens no device anew.
            drained, cluster.drained = set(cluster.drained), []
            network, cluster.network = cluster.network, REALISTIC
            is_known = cluster == self._cluster
            if is_known and self._is_open:
                self._clear_cluster_error()  # of an edit that was undone
            elif not is_known or time.monotonic() >= self._retry_devices_at:
                await self._open_devices(cluster)
        except httpx.HTTPError:
            raise  # the block could not be read
        except Exception as error:  # a driver, a Docker host or a file may raise anything
            self._keep_devices(error)
        else:
            self._drain(drained)
            await self._use_network(network)

    async def _open_devices(self, cluster: GpuCluster) -> None:
        self._cluster, self._is_open = cluster, False
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
            self._pool,
            self.is_leading,
        )
        await self.close()
        self._source, self._is_open = source, True
        self._clear_cluster_error()
        self._use_nodes(nodes)
        loop = asyncio.get_running_loop()
        self._sampler = Sampler(source, self.sample_s, lambda at, readings: self._pass_on(loop, at, readings))
        self._dispatcher.wake()

    def _clear_cluster_error(self) -> None:
        if self.cluster_error:
            self.cluster_error, self._pauses = "", RETRY_DEVICES.pauses()

    def _keep_devices(self, error: Exception) -> None:
        self._retry_devices_at = time.monotonic() + next(self._pauses)
        expected = isinstance(error, (BadBlock, DeviceError, ValueError))
        reason = str(error) if expected else f"opening them raised {type(error).__name__}: {error}"
        message = f"The devices stay as they are: {reason}"
        if self.cluster_error != message:
            self.cluster_error = message
            self._log.error("%s", message, exc_info=None if expected else error)

    def _drain(self, names: set[str]) -> None:
        """Start nothing on these nodes, and use the nodes again that are no longer among them."""
        nodes = self._engine.cluster.nodes
        self.unknown_drained = ""
        if unknown := sorted(names - nodes.keys()):
            missing, present = ", ".join(unknown), ", ".join(nodes)
            self.unknown_drained = f"The cluster block drains {missing}, but the nodes are {present}."
        if names != self._drained:
            self._log.info("Drained nodes: %s.", ", ".join(sorted(names)) or "none")
            changed, self._drained = names ^ self._drained, names
            self._mark_nodes(changed & nodes.keys())
            self._dispatcher.wake()

    async def _use_network(self, name: str) -> None:
        """Tell policies what this table says about the network, unless they know. A table that cannot be
        read is tried again each time the blocks are read."""
        if name == self._network:
            self.network_error = ""  # of an edit that was undone
            return
        try:
            network = await asyncio.to_thread(load_network, name)
        except Exception as error:  # a file may hold anything
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            message = f"The network table stays {self._network!r}: {reason}"
            if self.network_error != message:
                self.network_error = message
                self._log.error("%s", message)
            return
        self._network, self.network_error = name, ""
        self._engine.set_network(network.slowdown)
        self._log.info("Policies are told of the network by the table %r.", network.name)
        self._dispatcher.wake()

    def _pass_on(self, loop: asyncio.AbstractEventLoop, at: float, readings: list[Reading]) -> None:
        """Pass readings from the sampler's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closing
            loop.call_soon_threadsafe(self._use_readings, at, readings)

    def _use_nodes(self, nodes: list[Node]) -> None:
        self._telemetry.set_nodes(nodes, time.time())
        self._mark_nodes(node.name for node in nodes)

    def _mark_nodes(self, names: Iterable[str]) -> None:
        for name in names:
            why_not = self.why_unusable(name)
            self._engine.set_node(name, not why_not, why_not)

    def _use_readings(self, at: float, readings: list[Reading]) -> None:
        if self._source and (nodes := self._source.changed_nodes()):
            self._use_nodes(nodes)
        self._telemetry.add_readings(at, readings)
        self._on_readings(readings)
        self._dispatcher.wake()


def _are_same(one: Policy, other: Policy) -> bool:
    return (one.name, one.options) == (other.name, other.options)

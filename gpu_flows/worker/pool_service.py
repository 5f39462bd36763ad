"""Serves one work pool: connects the engine, devices, runtimes, history and runs of the pool.

The service acts only while its worker holds the pool's lease. Events from the server are handled as they
arrive; a poll every few seconds corrects what events missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import WorkPool
from prefect.events import Event
from prefect.exceptions import PrefectException

from gpu_flows.analytics.facts import DeviceEvent
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.blocks import GpuCluster, Warehouse
from gpu_flows.common.retry import Backoff, retry
from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.config.paths import END_WITH_WORKER, default_warehouse, pool_folder
from gpu_flows.config.pool_blocks import BadBlock, BlockNames, read_warehouse
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.launch_builder import LaunchBuilder
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_logs import RunLogs
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.waiting_notes import WaitingNotes
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.process import ProcessRuntime
from gpu_flows.runtimes.routing import RuntimeRouter
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.background_tasks import BackgroundTasks
from gpu_flows.worker.events import subscribe
from gpu_flows.worker.lease import PoolLease
from gpu_flows.worker.queue_sync import RUN_EVENTS, QueueSync
from gpu_flows.worker.status import write_status
from gpu_flows.worker.status_builder import build_status

if TYPE_CHECKING:
    from gpu_flows.runtimes.docker.runtime import DockerRuntime

RETRY = Backoff(first_s=2.0)
PAUSE_FACTOR, LONGEST_PAUSE_S = 10.0, 20.0  # the pause between polls, as a multiple of a poll's duration
PUBLISH_EVERY_S = 1.0
Identity = Callable[[], tuple[str, UUID | None]]  # the worker's name, and its id on the server


class PoolService:
    def __init__(
        self,
        client: PrefectClient,
        pool: WorkPool,
        queues: set[str],
        identity: Identity,
        log: logging.Logger,
    ) -> None:
        self._client, self._identity, self._log = client, identity, log
        self.pool = pool
        self.folder = pool_folder(pool.name)
        self._tasks = BackgroundTasks(log)
        self._lease = PoolLease(client, pool.name, identity()[0], self.folder, log)
        self._recorder: Recorder | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._next_poll = 0.0
        self.job_store, self._attempt_store = JobStore(self.folder), AttemptStore(self.folder)
        self.engine = Engine((), Fifo(), can_preempt=True, protection=Protection())
        self.containers = self._open_containers()
        self.runtime = RuntimeRouter(
            {"process": ProcessRuntime(self._attempt_store), "docker": self.containers}
        )
        self.due_jobs, self.states = DueJobs(client, pool, queues), RunStates(client, pool.name)
        launches = LaunchBuilder(
            client, self.due_jobs, identity, self._count_attempts, self.job_store.make_checkpoint_directory
        )
        self.gateway = PrefectGateway(self.due_jobs, self.states, launches)
        self.dispatcher = Dispatcher(
            pool.name,
            self.engine,
            self.runtime,
            self.gateway,
            self.job_store,
            self._record,
            log,
            on_finished=lambda job: self._queue_sync.on_finished(job),
            flush=self._flush,
        )
        self._queue_sync = QueueSync(
            self.due_jobs,
            self.states,
            self.gateway,
            self.dispatcher,
            self._record,
            self._tasks,
            self._poll_after,
        )
        self._blocks = BlockFollower(
            client, pool.name, self.dispatcher, self.containers, self._use_cluster, self._record, log
        )
        self._waiting_notes = WaitingNotes(self.dispatcher, self.states)

    def _open_containers(self) -> DockerRuntime:
        from gpu_flows.runtimes.docker.runtime import DockerRuntime  # imports Docker's library, which is slow

        return DockerRuntime(
            self._attempt_store,
            str(self.pool.id),  # the pool owns its containers, whichever machine its worker runs on
            RunLogs(self._client),
            on_found=lambda found: self.dispatcher.adopt(found),
            on_host=self._on_host_change,
            may_act=lambda: self.dispatcher.active,
            will_resume=self.job_store.will_continue,
        )

    # -- start and close ----------------------------------------------------------------------

    def start(self) -> None:
        self._tasks.start(self._serve())

    async def _serve(self) -> None:
        await self._lease.acquire()
        await retry(self._prepare, RETRY, lambda _: True, self._log_failed_start)
        self._start_background_tasks()
        while True:
            await retry(self._recover, RETRY, lambda _: True, self._log_failed_start)
            self.dispatcher.active = True
            self._poll_soon()
            await self._publish()  # the command line can read the status as soon as the pool is served
            cluster = self.engine.cluster
            self._log.info(
                "Serving pool %r with policy %r: %d devices on %d nodes.",
                self.pool.name,
                self.engine.policy.name,
                len(cluster.devices),
                len(cluster.nodes),
            )
            await self._lease.renew_until_lost()
            self.dispatcher.active = False
            self._log.error("The lease on pool %r could not be renewed; standing by.", self.pool.name)
            await self._lease.acquire()

    def _log_failed_start(self, error: Exception) -> None:
        self._log.warning("Cannot serve pool %r yet (%s); trying again.", self.pool.name, error)

    async def _prepare(self) -> None:
        """Read the blocks, and start recording and sampling."""
        names = BlockNames.of(self.pool)
        try:
            warehouse = await read_warehouse(self._client, names.warehouse)
        except BadBlock as error:
            self._log.error("Recording to the default warehouse: %s", error)
            warehouse = Warehouse()
        if self._recorder is None:
            database = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
            self._recorder = Recorder(database, self.folder / "spool")
            await asyncio.to_thread(self._recorder.drain)  # creates the tables before the pool is served
            self._recorder.start()
        self._blocks.sample_s = warehouse.sample_seconds
        await self._blocks.apply(names)

    def _start_background_tasks(self) -> None:
        resource = f"prefect.work-pool.{self.pool.id}"
        on_run_event = self._queue_sync.on_run_event
        self._tasks.start(subscribe(RUN_EVENTS, on_run_event, self._log, resource, self._poll_soon))
        self._tasks.start(subscribe("prefect.block-document.", self._on_block_event, self._log))
        self._tasks.start(self._waiting_notes.keep_writing())
        self._tasks.start(self._keep_publishing())

    async def _recover(self) -> None:
        """Adopt the attempts that an earlier worker launched. Of several attempts of a job, only the last
        counts. Runs that were claimed and never launched are released by the first poll."""
        attempts = await self.runtime.find()
        for found in sorted(attempts, key=lambda found: found.launch.attempt, reverse=True):
            if not self.dispatcher.is_executing(found.launch.job.id):
                self.dispatcher.adopt(found)

    async def close(self) -> None:
        """Stop serving. Jobs continue to run, and the next worker adopts them."""
        if os.environ.get(END_WITH_WORKER):
            await self.containers.kill_all()
        await self.dispatcher.close()
        await self._tasks.close()
        if self._poll_timer:
            self._poll_timer.cancel()
        await self._blocks.close()
        await self.containers.close()
        if self._recorder:
            await asyncio.to_thread(self._recorder.close)
        await self._lease.release()

    # -- polls --------------------------------------------------------------------------------

    async def poll(self, pool: WorkPool) -> None:
        """Read all runs and blocks of the pool."""
        self.pool = self.due_jobs.pool = pool
        if not self.dispatcher.active:
            return
        began = time.monotonic()
        await self._queue_sync.sync_all()
        await self._apply_blocks()
        took = time.monotonic() - began
        self._next_poll = time.monotonic() + min(LONGEST_PAUSE_S, PAUSE_FACTOR * took)

    async def poll_if_due(self, pool: WorkPool) -> None:
        """Poll, unless the last poll was too recent. Reading a long queue costs the server a second or two,
        so the pause grows with the duration of the last poll. Events report changes in the meantime."""
        if time.monotonic() >= self._next_poll:
            await self.poll(pool)

    def _poll_soon(self) -> None:
        self._tasks.start(self._try_poll())

    async def _try_poll(self) -> None:
        with contextlib.suppress(httpx.HTTPError, PrefectException):
            await self.poll(self.pool)

    def _poll_after(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        if self._poll_timer and loop.time() < self._poll_timer.when() <= loop.time() + delay:
            return  # a poll is already scheduled before that
        if self._poll_timer:
            self._poll_timer.cancel()
        self._poll_timer = loop.call_later(delay, self._poll_soon)

    # -- jobs ---------------------------------------------------------------------------------

    def kill(self, identifier: str) -> bool:
        """Stop the attempt with this infrastructure identifier. Returns whether there is one."""
        job_id = self.dispatcher.find_job(identifier)
        return job_id is not None and self.dispatcher.cancel(job_id)

    def _count_attempts(self, job_id: str) -> int:
        """How many attempts a job has had, including those whose folders have been removed since."""
        return max(self._attempt_store.last_attempt(job_id), self.job_store.load_progress(job_id).attempts)

    # -- blocks and hosts ---------------------------------------------------------------------

    def _on_block_event(self, event: Event) -> None:
        self._tasks.start(self._apply_blocks())

    async def _apply_blocks(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await self._blocks.apply(BlockNames.of(self.pool))

    def _use_cluster(self, cluster: GpuCluster) -> None:
        """Check containers against the rules and hosts of this cluster block from now on."""
        self.due_jobs.cluster = cluster

    def _on_host_change(self, name: str, trouble: str) -> None:
        """Mark the nodes of a Docker host as up or down."""
        nodes = self.engine.cluster.nodes
        if trouble:
            self._log.error("%s", trouble)
        else:
            self._log.info("Docker host %s answers.", name)
        for node in [name] if self.due_jobs.cluster.hosts else list(nodes):
            if node in nodes:
                self.engine.set_node(node, not trouble, trouble)
                kind, now = ("gone" if trouble else "healthy"), time.time()
                devices = (state.device for state in nodes[node].devices)
                self._record(*(DeviceEvent(now, d.id, d.node, kind, trouble) for d in devices))
        self.dispatcher.wake()

    # -- status and history -------------------------------------------------------------------

    async def _keep_publishing(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_EVERY_S)
            if self.dispatcher.active:
                await self._publish()

    async def _publish(self) -> None:
        recorder_trouble = self._recorder.trouble if self._recorder else ""
        status = build_status(
            self.pool.name, self._identity()[0], self.dispatcher, self._blocks, recorder_trouble
        )
        await asyncio.to_thread(write_status, status)

    def _record(self, *facts: Any) -> None:
        if self._recorder:
            self._recorder.write(*facts)

    def _flush(self) -> None:
        if self._recorder:
            self._recorder.flush()

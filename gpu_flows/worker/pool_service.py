"""Serves one work pool: connects the engine, devices, runtimes, history and runs of the pool.

The service acts for the pool only while its worker holds the pool's lease. While it stands by, it watches and
reports the processes that it launched on its own machine. Events from the server are handled as they arrive;
a poll every few seconds corrects what events missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import WorkPool
from prefect.events import Event
from prefect.exceptions import PrefectException

from gpu_flows.analytics.facts import DeviceEvent
from gpu_flows.blocks import GpuCluster
from gpu_flows.common.retry import retry
from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.config.paths import END_WITH_WORKER, pool_folder
from gpu_flows.config.pool_blocks import BlockNames
from gpu_flows.devices.base import Reading
from gpu_flows.devices.claims import claims_of
from gpu_flows.devices.idle_watch import IdleLimit
from gpu_flows.devices.memory_peaks import MemoryPeaks
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.prefect_api.claims import place_of
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.launch_builder import LaunchBuilder
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_edits import RUN_EDITED
from gpu_flows.prefect_api.run_logs import RunLogs
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.server_retry import retry_until_answered
from gpu_flows.prefect_api.waiting_log import WaitingLog
from gpu_flows.prefect_api.waiting_notes import WaitingNotes
from gpu_flows.prefect_api.worker_log import WorkerLog
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.process import ProcessRuntime
from gpu_flows.runtimes.process_output import ProcessOutput
from gpu_flows.runtimes.routing import RuntimeRouter
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.prediction.options import PredictionOptions
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.background_tasks import BackgroundTasks
from gpu_flows.worker.events import subscribe
from gpu_flows.worker.folder_lock import FolderLock
from gpu_flows.worker.housekeeping import keep_tidy
from gpu_flows.worker.leadership import RETRY, Leadership
from gpu_flows.worker.lease import PoolLease
from gpu_flows.worker.machines import Machines
from gpu_flows.worker.missed_ends import record_missed_ends
from gpu_flows.worker.other_runs import OtherRuns
from gpu_flows.worker.pool_forecasts import PoolForecasts
from gpu_flows.worker.prediction_setup import keep_predictors, learn_end, open_prediction
from gpu_flows.worker.progress_watch import ProgressWatch
from gpu_flows.worker.publishing import Publishing
from gpu_flows.worker.queue_sync import POOL_EVENTS, RUN_EVENTS, QueueSync
from gpu_flows.worker.recording import PoolRecord, find_warehouse

if TYPE_CHECKING:
    from gpu_flows.runtimes.docker.runtime import DockerRuntime

PAUSE_FACTOR, LONGEST_PAUSE_S = 10.0, 20.0  # the pause between polls, as a multiple of a poll's duration
Identity = Callable[[], tuple[str, UUID | None]]  # the worker's name, and its id on the server


class PoolService:
    def __init__(
        self, client: PrefectClient, pool: WorkPool, queues: set[str], identity: Identity, log: logging.Logger
    ) -> None:
        self._client, self._identity, self._log = client, identity, log
        self.folder = pool_folder(pool.name)
        self._tasks = BackgroundTasks(log)
        self._poll_timer: asyncio.TimerHandle | None = None
        self._next_poll, self._is_prepared = 0.0, False
        self.job_store, self._attempt_store = JobStore(self.folder), AttemptStore(self.folder)
        self._folder_lock = FolderLock(self.folder, log)
        self._lease = PoolLease(client, pool.name, self.folder, log)
        place, name = place_of(self.folder), lambda: identity()[0]
        self._machines = Machines(client, pool.name, place, name)
        self.engine = Engine((), Fifo(), can_preempt=True, protection=Protection())
        self._history = PoolRecord(
            pool, self.engine, lambda job_id: self.dispatcher.find_executing(job_id), log
        )
        self.containers, self._processes = self._open_containers(pool.id), self._open_processes()
        self.runtime = RuntimeRouter({"process": self._processes, "docker": self.containers})
        self.due_jobs = DueJobs(client, pool, queues)
        self.states = RunStates(client, self._lease, name, place)
        self._worker_log = WorkerLog(client)
        self.gateway = self._open_gateway()
        self._memory_peaks = MemoryPeaks(self._find_holders)
        self.prediction = self.due_jobs.prediction = open_prediction(
            self.engine,
            self.job_store,
            self._history.add,
            self._worker_log.write,
            lambda job_ids: self._queue_sync.on_predicted(job_ids),
            log,
        )
        self.forecasts = PoolForecasts(
            client,
            self.folder,
            self.engine,
            self.prediction,
            self.due_jobs,
            self._history,
            describe_progress=lambda job_id: self._progress.describe(job_id),
            choices=lambda: self._blocks,
            is_leading=lambda: self.dispatcher.active,
            log=log,
        )
        self.dispatcher = Dispatcher(
            pool.name,
            self.engine,
            self.runtime,
            self.gateway,
            self.job_store,
            self._history.add,
            log,
            on_finished=lambda job: self._queue_sync.on_finished(job),
            on_adopted=lambda job: self._other_runs.release(job.id),
            flush=self._history.flush,
            lease=self._lease,
            take_peaks=self._memory_peaks.take,
            on_attempt_end=lambda ended: learn_end(self.prediction, ended),
            spectator=self.forecasts.forecaster,
        )
        self._leadership = Leadership(
            self._lease, self.dispatcher, lambda: self._take_over(), self._begin, self._tasks, log
        )
        self._other_runs = OtherRuns(
            self.due_jobs, self.states, self.dispatcher, self._lease, self._machines, log
        )
        self._queue_sync = QueueSync(
            self.due_jobs,
            self.states,
            self.gateway,
            self.dispatcher,
            self._history.add,
            self._tasks,
            self._poll_after,
            self._other_runs,
        )
        self._blocks = BlockFollower(
            client,
            pool.name,
            self.dispatcher,
            self.containers,
            self._use_cluster,
            self._history.add,
            log,
            self._use_prediction,
            self._on_readings,
        )
        self._blocks.is_leading = self._lease.is_valid
        self._progress = ProgressWatch(
            self.dispatcher,
            self.runtime.read_output,
            self.due_jobs.parameters,
            self._history.add,
            self.prediction.predict_longer,
        )
        self._waiting_notes = WaitingNotes(self.forecasts.foresee(self._queue_sync), self.states)
        self._waiting_log = WaitingLog(self.forecasts.foresee(self._queue_sync), self._worker_log)
        self._publishing = Publishing(
            client,
            self.pool.name,
            name,
            self.dispatcher,
            self._queue_sync,
            self._blocks,
            self.prediction,
            self._progress,
            self.forecasts,
            self._history,
            log,
        )

    @property
    def pool(self) -> WorkPool:
        """The work pool as last read from the server."""
        return self.due_jobs.pool

    def _open_containers(self, pool_id: UUID) -> DockerRuntime:
        from gpu_flows.runtimes.docker.runtime import DockerRuntime  # imports Docker's library, which is slow

        return DockerRuntime(
            self._attempt_store,
            str(pool_id),  # the pool owns its containers, whichever machine its worker runs on
            RunLogs(self._client),
            on_found=lambda found: self.dispatcher.adopt(found),
            on_host=self._on_host_change,
            may_act=lambda: self.dispatcher.active,
            will_resume=self.job_store.will_continue,
        )

    def _open_processes(self) -> ProcessOutput:
        runtime = ProcessRuntime(self._attempt_store, claims_of)
        return ProcessOutput(runtime, self._attempt_store, RunLogs(self._client))

    def _open_gateway(self) -> PrefectGateway:
        client, make_directory = self._client, self.job_store.make_checkpoint_directory
        launches = LaunchBuilder(client, self.due_jobs, self._identity, self._count_attempts, make_directory)
        return PrefectGateway(self.due_jobs, self.states, launches, self._worker_log)

    # -- start and close ----------------------------------------------------------------------

    def start(self) -> None:
        self._tasks.keep("Serving the pool", self._serve)

    async def _serve(self) -> None:
        await self._folder_lock.acquire()
        await retry(self._prepare, RETRY, lambda _: True, self._leadership.log_failed_start)
        await self._leadership.serve()

    async def _prepare(self) -> None:
        """Do what does not need the lease: record, and watch the processes of this machine."""
        await self._machines.sign()
        if not self._history.is_open:
            warehouse = await find_warehouse(self._client, BlockNames.of(self.pool).warehouse, self._log)
            self._blocks.sample_s = warehouse.sample_seconds
            await self._history.open(warehouse, self.folder / "spool")
        if not self._is_prepared:
            await asyncio.to_thread(self.job_store.load)
            await asyncio.to_thread(self._attempt_store.count_attempts)
            self.dispatcher.adopt_latest(await self._processes.find())
            self._start_background_tasks()
            self._is_prepared = True

    async def _take_over(self) -> None:
        """Read the blocks, find what earlier workers launched, and read the queue."""
        await self._blocks.apply(BlockNames.of(self.pool))
        await self.dispatcher.drop_containers()  # those that this worker launched under an earlier lease
        self.containers.unfollow_all()
        self.dispatcher.adopt_latest(await self.runtime.find())
        await self._queue_sync.sync_all()

    async def _begin(self) -> None:
        """Do what follows when the dispatcher has begun to act."""
        self._poll_soon()
        self._tasks.start(retry_until_answered(self._record_missed_ends))
        await self._publishing.publish()  # the command line can read the status as soon as the pool is served
        cluster, policy = self.engine.cluster, self.engine.policy.name
        size = f"{len(cluster.devices)} devices on {len(cluster.nodes)} nodes"
        self._log.info("Serving pool %r with policy %r: %s.", self.pool.name, policy, size)

    def _start_background_tasks(self) -> None:
        resource = f"prefect.work-pool.{self.pool.id}"
        keep, log, sync = self._tasks.keep, self._log, self._queue_sync
        stores = self.job_store, self._attempt_store
        runs, blocks = (RUN_EVENTS, RUN_EDITED), ["prefect.block-document."]
        keep("Events of runs", lambda: subscribe(runs, sync.on_run_event, log, resource, self._poll_soon))
        keep("Events of the pool", lambda: subscribe(POOL_EVENTS, sync.on_pool_event, log, resource))
        reread = self._on_block_event
        keep("Events of blocks", lambda: subscribe(blocks, reread, log, on_connected=reread))
        keep("Writing why runs wait", self._waiting_notes.keep_writing)
        keep("Logging why runs wait", self._waiting_log.keep_writing)
        keep(
            "Loading predictors",
            lambda: keep_predictors(
                self.prediction, self.engine.set_slowdown, self._history.find_database, log
            ),
        )
        self.forecasts.start(keep)
        keep("Sending logs", self._worker_log.keep_sending)
        keep("Following the progress of jobs", self._progress.keep_watching)
        keep("Writing the status", self._publishing.keep_publishing)
        keep("Writing the artifacts", self._publishing.artifacts.keep_writing)
        keep("Removing old files", lambda: keep_tidy(*stores, lambda: self.dispatcher.active))

    async def close(self) -> None:
        """Stop serving. Jobs continue to run, and the next worker adopts them."""
        if os.environ.get(END_WITH_WORKER):
            await self.containers.kill_all()
        await self.dispatcher.close()
        await self._tasks.close()
        await self._worker_log.close()
        if self._is_prepared:
            await self._publishing.publish()  # that it no longer serves the pool
        if self._poll_timer:
            self._poll_timer.cancel()
        await self._blocks.close()
        await self.prediction.close()
        await self.containers.close()
        await self._processes.close()
        await self._history.close()
        await self._lease.release()
        self._folder_lock.release()

    # -- polls --------------------------------------------------------------------------------

    async def poll(self) -> None:
        """Read all runs and blocks of the pool."""
        if not self.dispatcher.active:
            if self._is_prepared:  # else another live worker may use this folder
                await self._other_runs.watch_own()
            return
        began = time.monotonic()
        await self._queue_sync.sync_all()
        await self._apply_blocks()
        took = time.monotonic() - began
        self._next_poll = time.monotonic() + min(LONGEST_PAUSE_S, PAUSE_FACTOR * took)

    async def poll_if_due(self) -> None:
        """Poll, unless the last poll was too recent. Reading a long queue costs the server a second or two,
        so the pause grows with the duration of the last poll. Events report changes in the meantime."""
        if time.monotonic() >= self._next_poll:
            await self.poll()

    def _poll_soon(self) -> None:
        self._tasks.start(self._try_poll())

    async def _try_poll(self) -> None:
        with contextlib.suppress(httpx.HTTPError, PrefectException):
            await self.poll()

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

    def _on_block_event(self, event: Event | None = None) -> None:
        if self.dispatcher.active:
            self._tasks.start(self._apply_blocks())

    async def _apply_blocks(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await self._blocks.apply(BlockNames.of(self.pool))

    def _use_cluster(self, cluster: GpuCluster) -> None:
        """Check containers against the rules and hosts of this cluster block from now on."""
        self.due_jobs.cluster = cluster
        self._history.use_limit(IdleLimit(cluster.idle_percent, cluster.idle_minutes))

    def _on_readings(self, readings: list[Reading]) -> None:
        self._memory_peaks.add(readings)
        self._history.add_readings(readings)

    def _find_holders(self, device_id: str) -> dict[str, int]:
        state = self.engine.cluster.devices.get(device_id)
        return state.holders if state else {}

    def _use_prediction(self, options: PredictionOptions) -> None:
        """Predict with these options from now on, also of the jobs that wait."""
        self.prediction.options = options

    def _on_host_change(self, name: str, trouble: str) -> None:
        """Mark the nodes of a Docker host as up or down."""
        nodes = self.engine.cluster.nodes
        if trouble:
            self._log.error("%s", trouble)
        else:
            self._log.info("Docker host %s answers.", name)
        for node in [name] if self.due_jobs.cluster.hosts else list(nodes):
            if node in nodes:
                why_not = trouble or self._blocks.why_unusable(node)
                self.engine.set_node(node, not why_not, why_not)
                kind, now = ("gone" if trouble else "healthy"), time.time()
                devices = (state.device for state in nodes[node].devices)
                self._history.add(*(DeviceEvent(now, d.id, d.node, kind, trouble) for d in devices))
        self.dispatcher.wake()

    async def _record_missed_ends(self) -> None:
        if database := self._history.find_database():
            runs, is_executing = self.due_jobs.runs, self.dispatcher.is_executing
            await record_missed_ends(
                database, self.pool.name, runs, is_executing, self._history.add, self._log
            )

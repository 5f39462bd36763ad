"""One pool, served: the engine, the devices, the record and the runs of a work pool, tied together.

It acts only while it leads (one worker per pool does). What the server tells by events is looked
at once at a time and at once; a poll every few seconds catches what events missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType, WorkPool
from prefect.events import Event
from prefect.exceptions import PrefectException

from gpu_flows.analytics.facts import DeviceEvent
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.blocks import GpuCluster, Warehouse
from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.config.paths import END_WITH_WORKER, default_warehouse, pool_folder
from gpu_flows.config.pool_blocks import BadBlock, BlockNames, read_warehouse
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.prefect_api.due_runs import Arrivals, Intake
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_logs import RunLogs
from gpu_flows.prefect_api.run_states import RunStates, now
from gpu_flows.prefect_api.waiting_notes import WaitingNotes
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.process import ProcessRuntime
from gpu_flows.runtimes.routing import RuntimeRouter
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Reason
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.events import listen
from gpu_flows.worker.lease import PoolLease
from gpu_flows.worker.status import publish, status_of

if TYPE_CHECKING:
    from gpu_flows.runtimes.docker.runtime import DockerRuntime

REST_SHARE, LONGEST_REST_S = 10.0, 20.0
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
        self.job_store = JobStore(self.folder)
        self.engine = Engine((), Fifo(), can_preempt=True, protection=Protection())
        self.intake = Intake(client, pool, queues)
        self.states = RunStates(client, pool.name)
        self._attempt_store = AttemptStore(self.folder)
        self.containers = self._containers()
        self.runtime = RuntimeRouter(
            {"process": ProcessRuntime(self._attempt_store), "docker": self.containers}
        )
        self.gateway = PrefectGateway(
            pool.name, self.intake, self.states, identity, self._attempts_of, self.job_store.checkpoints
        )
        self._lease = PoolLease(client, pool.name, identity()[0], self.folder, log)
        self._recorder: Recorder | None = None
        self.dispatcher = Dispatcher(
            pool.name,
            self.engine,
            self.runtime,
            self.gateway,
            self.job_store,
            self._record,
            log,
            on_finished=self._on_finished,
            flush=self._flush,
        )
        self._blocks = BlockFollower(
            client, pool.name, self.dispatcher, self.containers, self._follow_cluster, self._record, log
        )
        self._waiting_notes = WaitingNotes(self.dispatcher, self.states)
        self._due: dict[str, Job] = {}  # every due job, also those that limits hold back
        self._described: set[str] = set()  # jobs whose fact has been written
        self._finished_at: dict[str, float] = {}  # jobs that the dispatcher is through with, and since when
        self._heard: set[UUID] = set()  # runs that events told of, to be looked at
        self._looking = asyncio.Lock()
        self._rest_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _containers(self) -> DockerRuntime:
        from gpu_flows.runtimes.docker.runtime import DockerRuntime  # loads Docker's library: not on import

        return DockerRuntime(
            self._attempt_store,
            str(self.pool.id),  # whoever serves this pool, from whatever machine, owns its containers
            RunLogs(self._client),
            on_found=lambda found: self.dispatcher.adopt(found),
            on_host=self._hear_of_host,
            may_act=lambda: self.dispatcher.active,
            will_resume=self.job_store.expects,
        )

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._spawn(self._serve())

    async def _serve(self) -> None:
        await self._lease.acquire()
        await self._insist(self._prepare)
        resource = f"prefect.work-pool.{self.pool.id}"
        self._spawn(listen("prefect.flow-run.", self._hear_of_run, self._log, resource, self._poll_soon))
        self._spawn(listen("prefect.block-document.", self._hear_of_block, self._log))
        self._spawn(self._waiting_notes.keep_writing())
        self._spawn(self._keep_publishing())
        while True:
            await self._insist(self._recover)
            self.dispatcher.active = True
            self._poll_soon()
            await self._publish()  # who serves can be asked
            cluster = self.engine.cluster
            self._log.info(
                "Serving pool %r with policy %r: %d devices on %d nodes.",
                self.pool.name,
                self.engine.policy.name,
                len(cluster.devices),
                len(cluster.nodes),
            )
            await self._lease.keep()
            self.dispatcher.active = False
            self._log.error("The right to act for pool %r is in doubt; standing by.", self.pool.name)
            await self._lease.acquire()

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Until it works: a pool that is not served because of a passing fault serves nobody."""
        while True:
            try:
                return await step()
            except Exception as error:
                self._log.warning("Cannot serve pool %r yet (%s); trying again.", self.pool.name, error)
                await asyncio.sleep(2.0)

    async def _prepare(self) -> None:
        """Read the blocks, and begin to record and to sample."""
        names = BlockNames.of(self.pool)
        try:
            warehouse = await read_warehouse(self._client, names.warehouse)
        except BadBlock as error:
            self._log.error("Recording to the default warehouse: %s", error)
            warehouse = Warehouse()
        if self._recorder is None:
            database = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
            self._recorder = Recorder(database, self.folder / "spool")
            await asyncio.to_thread(self._recorder.drain)  # who serves can be asked: the tables are there
            self._recorder.start()
        self._blocks.sample_s = warehouse.sample_seconds
        await self._blocks.follow(names)

    async def _recover(self) -> None:
        """Find out from the world what a worker before us left: adopt what lives, close what died.
        What it had claimed and never launched, the first poll puts back in line."""
        found = await self.runtime.find()
        for each in sorted(found, key=lambda each: each.launch.attempt, reverse=True):  # of a job, the last
            if not self.dispatcher.has_execution(each.launch.job.id):
                self.dispatcher.adopt(each)

    async def close(self) -> None:
        """Stop serving. Jobs go on running, and the next worker adopts them."""
        if os.environ.get(END_WITH_WORKER):
            await self.containers.kill_all()
        await self.dispatcher.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer:
            self._timer.cancel()
        await self._blocks.close()
        await self.containers.close()
        if self._recorder:
            await asyncio.to_thread(self._recorder.close)
        await self._lease.release()

    # -- runs ---------------------------------------------------------------------------------

    async def poll(self, pool: WorkPool) -> None:
        """Look at everything: the backstop for whatever events did not tell."""
        self.pool = self.intake.pool = pool
        if not self.dispatcher.active:
            return
        began = time.monotonic()
        async with self._looking:
            before = {job.id for job in self.engine.waiting} | set(self._due)
            arrivals = await self.intake.look(pool, keep=self.dispatcher.executing())
            seen = {job.id for job in arrivals.jobs}
            await self._take(arrivals, asked=began)
            await self._note_gone(before - seen - self.dispatcher.executing())
            self._described &= set(self._due) | self.dispatcher.executing()
            self._finished_at = {id: at for id, at in self._finished_at.items() if at >= began}
        for run in await self.intake.of_state(StateType.CANCELLING, StateType.PENDING):
            if run.state_type == StateType.CANCELLING:
                await self._cancel(run.id)
            elif not self.dispatcher.has_execution(str(run.id)) and self.states.is_left_claimed(run):
                await self.states.unclaim(run.id, "it was claimed and never launched")
        await self._follow_blocks()
        rest = min(LONGEST_REST_S, REST_SHARE * (time.monotonic() - began))
        self._rest_until = time.monotonic() + rest

    async def poll_when_rested(self, pool: WorkPool) -> None:
        """A look at a long line costs the server a second or two. Events tell of what is new anyhow, so
        the next look waits for a multiple of what the last one took."""
        if time.monotonic() >= self._rest_until:
            await self.poll(pool)

    async def _look_at_heard(self) -> None:
        async with self._looking:
            heard, self._heard = self._heard, set()
            if heard and self.dispatcher.active:
                asked = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):  # the next poll sees them
                    await self._take(await self.intake.look_at(heard), asked)

    async def _take(self, arrivals: Arrivals, asked: float) -> None:
        """Put arrivals in line, but for those that were started and put down since they were asked
        for: what was read of them is history."""
        for run, why in arrivals.bad:
            self._spawn(self.gateway.refuse_run(run, Reason("bad_request", why)))
            self.dispatcher.note_end(str(run.id), "refused", why)
        for job in arrivals.jobs:
            if self._finished_at.get(job.id, -1.0) >= asked:
                continue
            if job.id not in self._described:
                self._record(await self.intake.describe(job))
                self._described.add(job.id)
            self._due[job.id] = job
        self._admit()
        if arrivals.next_due:
            delay = max(0.0, (arrivals.next_due - now()).total_seconds())
            self._poll_after(delay + 0.02)

    def _on_finished(self, job: Job) -> None:
        """The dispatcher is through with a job. What became of the run only the server knows now,
        unless the job went back to waiting."""
        if self.engine.waits(job.id):
            self._due[job.id] = job
        else:
            self._due.pop(job.id, None)
            self._finished_at[job.id] = time.monotonic()
        self._admit()

    def _attempts_of(self, job_id: str) -> int:
        """How many attempts a job has had; also if their folders have been swept away meanwhile."""
        return max(self._attempt_store.last_attempt(job_id), self.job_store.progress(job_id).attempts)

    def _admit(self) -> None:
        """Give the engine the due jobs that the pool's and its queues' limits leave room for."""
        executing = self.dispatcher.executing()
        for job_id in executing & set(self._due):
            del self._due[job_id]
        running = self.engine.running
        counted = [j for j in executing if not (j in running and running[j].job.gpus == 0)]
        allowed = self.intake.within_limits(self._due.values(), counted)
        for job in allowed:
            self.dispatcher.submit(job)
        if len(allowed) != len(self.engine.waiting):
            admitted = {job.id for job in allowed}
            for job in [job for job in self.engine.waiting if job.id not in admitted]:
                self.dispatcher.withdraw(job.id)

    async def _note_gone(self, job_ids: Iterable[str]) -> None:
        """Runs that waited and were not found among the due ones: somebody cancelled, paused, moved
        or deleted them, or a page was turned just as they moved up a place."""
        gone = set(job_ids)
        if not gone:
            return
        states = {str(run.id): run.state for run in await self.intake.by_id(UUID(each) for each in gone)}
        for job_id in gone:
            state = states.get(job_id)
            if state and state.is_scheduled() and self.intake.is_due(job_id, state):
                continue
            self._due.pop(job_id, None)
            self.dispatcher.withdraw(job_id)
            if state is None or state.is_cancelled():
                detail = state.message or "" if state else "the run was deleted"
                self.dispatcher.note_end(job_id, "cancelled", detail)

    def kill(self, identifier: str) -> bool:
        """Stop what runs as this. Whether anything does."""
        job_id = self.dispatcher.job_running_as(identifier)
        return job_id is not None and self.dispatcher.cancel(job_id)

    async def _cancel(self, run_id: UUID) -> None:
        job_id = str(run_id)
        if not self.dispatcher.active:
            return
        self._due.pop(job_id, None)
        if self.dispatcher.has_execution(job_id):
            self.dispatcher.cancel(job_id)
            return
        if self.engine.waits(job_id):
            self.dispatcher.withdraw(job_id)
            self.dispatcher.note_end(job_id, "cancelled", "cancelled while it waited")
        await self.states.close_abandoned(run_id)

    # -- news ---------------------------------------------------------------------------------

    def _hear_of_run(self, event: Event) -> None:
        job_id = event.resource.id.removeprefix("prefect.flow-run.")
        name = event.event.removeprefix("prefect.flow-run.")
        kind = (event.payload.get("validated_state") or {}).get("type")
        if name in ("Cancelling", "Cancelled"):
            self._spawn(self._cancel(UUID(job_id)))
        elif kind == "SCHEDULED" and job_id not in self._due and not self.dispatcher.has_execution(job_id):
            if not self._heard:
                self._spawn(self._look_at_heard())
            self._heard.add(UUID(job_id))

    def _hear_of_block(self, event: Event) -> None:
        self._spawn(self._follow_blocks())

    def _follow_cluster(self, cluster: GpuCluster) -> None:
        """Another cluster from now on: what containers may ask for, and where they run."""
        self.gateway.cluster = cluster
        here = all(host.is_here for host in cluster.docker_hosts)
        self.intake.container_rules = (cluster.containers, here)

    def _hear_of_host(self, name: str, trouble: str) -> None:
        """A Docker host went down or came up, and with it the nodes that it serves."""
        nodes = self.engine.cluster.nodes
        if trouble:
            self._log.error("%s", trouble)
        else:
            self._log.info("Docker host %s answers.", name)
        for node in [name] if self.gateway.cluster.hosts else list(nodes):
            if node in nodes:
                self.engine.set_node(node, not trouble, trouble)
                kind, now = ("gone" if trouble else "healthy"), time.time()
                devices = (state.device for state in nodes[node].devices)
                self._record(*(DeviceEvent(now, d.id, d.node, kind, trouble) for d in devices))
        self.dispatcher.wake()

    async def _follow_blocks(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await self._blocks.follow(BlockNames.of(self.pool))

    def _poll_soon(self) -> None:
        self._spawn(self._poll_quietly())

    def _poll_after(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer and loop.time() < self._timer.when() <= loop.time() + delay:
            return  # it rings earlier anyhow
        if self._timer:
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._poll_soon)

    async def _poll_quietly(self) -> None:
        with contextlib.suppress(httpx.HTTPError, PrefectException):
            await self.poll(self.pool)

    # -- telling ------------------------------------------------------------------------------

    async def _keep_publishing(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self.dispatcher.active:
                await self._publish()

    async def _publish(self) -> None:
        settings, recorder = self._blocks, self._recorder
        status = status_of(
            self.pool.name,
            self._identity()[0],
            self.dispatcher,
            settings.options,
            settings.refused_edit,
            settings.readings,
            " ".join(
                filter(None, [settings.trouble, settings.missing, recorder.trouble if recorder else ""])
            ),
        )
        await asyncio.to_thread(publish, status)

    def _record(self, *facts: Any) -> None:
        if self._recorder:
            self._recorder.write(*facts)

    def _flush(self) -> None:
        if self._recorder:
            self._recorder.flush()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            self._log.error("A part of the worker failed", exc_info=task.exception())

"""The pool's runs that are claimed, running or being cancelled, and which this worker does not execute.

Another worker launched them on its own machine, and watches and reports them although it stands by now. Until
they end, they hold their devices. If that machine counts as dead, they have crashed. A container on a Docker
host outlives its worker's machine: it is lost if this worker could not adopt it for `lost_after_seconds`. A
run that this worker, or one before it in this folder, claimed and never launched returns to the queue; one of
which nothing is left in that folder has crashed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, StateType

from gpu_flows.common.clock import utc_now
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.lease import Lease
from gpu_flows.prefect_api.claims import Claim
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.run_states import LOST, RunStates, is_suspended
from gpu_flows.schedulers.model import Job
from gpu_flows.worker.machines import DEAD_AFTER_S, UNSEEN_AFTER_S, Machines

TAKEN = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
ABANDONED_AFTER = timedelta(minutes=2)
VANISHED_AFTER_S = 60.0  # a supervisor restores the folder of its attempt within seconds
NEVER_LAUNCHED = "it was claimed and never launched"
VANISHED = "Nothing of it is left: its attempt's folder was removed, and nobody saw its process end."


class OtherRuns:
    def __init__(
        self,
        due_jobs: DueJobs,
        states: RunStates,
        dispatcher: Dispatcher,
        lease: Lease,
        machines: Machines,
        log: logging.Logger,
    ) -> None:
        self._due_jobs, self._states, self._dispatcher = due_jobs, states, dispatcher
        self._lease, self._machines, self._log = lease, machines, log
        self._claims: dict[str, Claim] = {}  # of the runs of other machines, by job id
        self._jobs: dict[str, Job] = {}  # of the same runs
        self._given_up: set[str] = set()  # runs that were reported as lost
        self._missing: dict[str, tuple[float, float]] = {}  # launched, but not found: since when, last check

    def followed(self) -> Set[str]:
        """The ids of the runs that other machines execute."""
        return self._claims.keys()

    async def check_all(self, runs: Iterable[FlowRun]) -> None:
        """Check all runs of the pool that are claimed, running, paused or being cancelled. A run that was
        followed and is not among them has ended or waits again."""
        taken = [run for run in runs if run.infrastructure_pid or not is_suspended(run)]
        for run in taken:
            if not self._dispatcher.is_executing(str(run.id)):
                await self._check(run)
        missing = {*self._claims, *self._given_up}.difference(str(run.id) for run in taken)
        for job_id in missing:
            self.release(job_id)
        still_missing = {str(run.id) for run in taken} - self._dispatcher.executing()
        self._missing = {id: times for id, times in self._missing.items() if id in still_missing}

    async def _check(self, run: FlowRun) -> None:
        """Decide what becomes of a run that this worker does not execute."""
        job_id = str(run.id)
        claim = self._claims.get(job_id) or await self._states.read_claim(run)
        # The answer may have taken long: this worker may have launched the run meanwhile, or lost its lease.
        if job_id in self._given_up or self._dispatcher.is_executing(job_id) or not self._lease.is_valid():
            return
        if claim is None:
            await self._check_unsigned(run)
        elif not self._states.is_of_this_place(claim):
            if self._due_jobs.cluster.hosts and _is_abandoned(run):  # every worker finds all containers
                await self._states.release_claim(run.id, NEVER_LAUNCHED, claim)
            else:
                await self._follow(run, claim)
        elif run.state_type == StateType.PENDING:
            await self._states.release_claim(run.id, NEVER_LAUNCHED, claim)
        elif self._is_on_docker_host(run):
            await self._give_up_missing_container(run)
        elif run.state_type == StateType.RUNNING and _is_process(run):
            await self._give_up_missing(run, VANISHED_AFTER_S, VANISHED)

    async def _check_unsigned(self, run: FlowRun) -> None:
        """Decide about a run whose claim does not say whose it is: a worker before version 0.4 made it."""
        if _is_abandoned(run):
            await self._states.release_claim(run.id, NEVER_LAUNCHED)
        elif self._is_on_docker_host(run):
            await self._give_up_missing_container(run)
        elif run.state_type == StateType.RUNNING and _is_process(run) and self._states.is_of_this_host(run):
            await self._give_up_missing(run, VANISHED_AFTER_S, VANISHED)

    async def _give_up_missing_container(self, run: FlowRun) -> None:
        after_s = self._due_jobs.cluster.containers.lost_after_seconds
        why = (
            f"Its container could not be found for {after_s:g} seconds: its host is out of reach, or the "
            "container was removed. It is unknown whether the job still runs."
        )
        await self._give_up_missing(run, after_s, why)

    async def _give_up_missing(self, run: FlowRun, after_s: float, why: str) -> None:
        """Report the loss of a launched run that this worker has not found for so long. Time in which this
        worker did not look does not count."""
        job_id, now = str(run.id), self._machines.now()
        since, checked = self._missing.get(job_id, (now, now))
        if now - checked > UNSEEN_AFTER_S:
            since = now
        self._missing[job_id] = since, now
        if now - since >= after_s:
            await self._give_up(run, why)

    async def _give_up(self, run: FlowRun, why: str) -> None:
        job_id = str(run.id)
        self._log.error("Run %s is lost. %s", run.name, why)
        if outcome := await self._states.report_lost(run.id, why):
            self._dispatcher.record_job_end(job_id, outcome, why)
        self.release(job_id)
        self._given_up.add(job_id)

    async def watch_own(self) -> None:
        """Do what another worker cannot do while it leads: stop the processes of this machine whose runs are
        being cancelled or suspended, or were given up, and return claims of which nothing was launched."""
        for run in await self._due_jobs.runs.find_in_state(StateType.PENDING):
            claim = await self._states.read_claim(run)
            is_own = claim is not None and self._states.is_of_this_place(claim)
            if is_own and not self._dispatcher.is_executing(str(run.id)):
                await self._states.release_claim(run.id, NEVER_LAUNCHED, claim)
        await self.stop_ended(self._dispatcher.running_processes())

    async def stop_ended(self, job_ids: Iterable[str]) -> None:
        """Stop those of these executed jobs whose runs are being cancelled or suspended, or were given up."""
        run_ids = [UUID(job_id) for job_id in job_ids]
        for run in await self._due_jobs.runs.find_in_any_state(run_ids) if run_ids else ():
            is_lost = run.state is not None and run.state.name == LOST
            if is_lost or run.state_type in (StateType.CANCELLING, StateType.CANCELLED):
                self._dispatcher.cancel(str(run.id))
            elif is_suspended(run):
                self._dispatcher.suspend(str(run.id))

    async def _follow(self, run: FlowRun, claim: Claim) -> None:
        """Hold the devices of a run of another machine until it ends or is lost."""
        job_id = str(run.id)
        if job_id not in self._claims:
            job = await self._build_job(run)
            self._claims[job_id], self._jobs[job_id] = claim, job
        self._hold_devices(job_id)
        if self._is_on_docker_host(run):
            await self._give_up_missing_container(run)
        elif await self._machines.is_dead(claim) and self._lease.is_valid():
            why = (
                f"Its machine {claim.host} has given no sign of life for {DEAD_AFTER_S / 60:.0f} minutes: no "
                "worker there sends heartbeats. It is unknown whether the job still runs."
            )
            await self._give_up(run, why)

    async def _build_job(self, run: FlowRun) -> Job:
        job = await self._due_jobs.build(run) or Job(str(run.id), name=run.name)
        return replace(job, preemptible=False)  # this worker cannot stop it

    def _hold_devices(self, job_id: str) -> None:
        """Count the devices of a followed run as taken. A device may be missing: it is not known yet, or the
        end of the job that had it before is not reported yet. It is added as soon as it can be."""
        engine, job = self._dispatcher.engine, self._jobs[job_id]
        known, running = engine.cluster.devices, engine.running.get(job_id)
        held = running.devices if running else ()
        missing = set(self._claims[job_id].devices).difference(device.id for device in held)
        free = [known[id].device for id in missing if id in known and known[id].has_room(job)]
        if free:
            since = running.since if running else utc_now().timestamp()
            engine.ended(job_id)
            engine.adopt(job, (*held, *free), since, attempt=1)

    def release(self, job_id: str) -> None:
        """Stop following a run: it has ended or waits again. A run that got its devices holds them now."""
        self._given_up.discard(job_id)
        if self._claims.pop(job_id, None) is None:
            return
        del self._jobs[job_id]
        engine = self._dispatcher.engine
        if not self._dispatcher.is_executing(job_id):
            engine.ended(job_id)
        for other in self._claims:
            self._hold_devices(other)
        self._dispatcher.wake()

    def _is_on_docker_host(self, run: FlowRun) -> bool:
        """Whether the run was launched as a container that every worker can find and adopt."""
        return bool(self._due_jobs.cluster.hosts and run.infrastructure_pid and not _is_process(run))


def _is_abandoned(run: FlowRun) -> bool:
    """Whether the run was claimed a while ago, and nothing of it was launched since."""
    state = run.state
    return bool(
        state
        and state.type == StateType.PENDING
        and not run.infrastructure_pid
        and utc_now() - state.timestamp > ABANDONED_AFTER
    )


def _is_process(run: FlowRun) -> bool:
    """Whether the run was launched as a process, `machine:pid`. A container is `machine:host/container`."""
    _, _, pid = (run.infrastructure_pid or "").partition(":")
    return pid.isdigit()

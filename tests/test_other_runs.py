"""Runs that another worker launched: they keep their devices, and end with their machine."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from fake_lease import FakeLease
from fake_pool import FakePool, in_event_loop
from fake_prefect import POOL, FakePrefect
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Completed, Pending, Running, Suspended

from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.worker.machines import DEAD_AFTER_S, Machines
from gpu_flows.worker.other_runs import TAKEN, VANISHED_AFTER_S, OtherRuns

log = logging.getLogger(__name__)
HERE, THERE = "here:/pools/gpu", "there:/pools/gpu"


class Takeover:
    """A worker at HERE that leads, and runs that a worker at THERE has launched."""

    def __init__(self, folder: Path) -> None:
        self.prefect, self.now = FakePrefect(), 0.0
        client = self.prefect.client
        self.pool = FakePool(folder)
        self.due_jobs = DueJobs(client, self.prefect.pool, set())
        self.here = RunStates(client, self.pool.lease, lambda: "new", HERE)
        self.there = RunStates(client, FakeLease("0"), lambda: "old", THERE)
        machines = Machines(client, POOL, HERE, lambda: "new", lambda: self.now)
        self.other_runs = OtherRuns(
            self.due_jobs, self.here, self.pool.dispatcher, self.pool.lease, machines, log
        )
        self.prefect.heartbeats = {"old": utc_now(), "new": utc_now()}
        (self.node,) = self.pool.engine.cluster.nodes.values()
        self.devices = [state.device.id for state in self.node.devices]

    async def launch_there(self, *devices: str, running: bool = True) -> FlowRun:
        run = self.prefect.add_run()
        assert await self.there.claim(run.id, devices)
        if running:
            self.prefect.set_state(run.id, Running())
        return self.prefect.runs[run.id]

    async def sync(self) -> None:
        taken = (*TAKEN, StateType.PAUSED)
        await self.other_runs.check_all(
            [run for run in self.prefect.runs.values() if run.state_type in taken]
        )

    async def pass_time(self, seconds: float, **beats: bool) -> None:
        for _ in range(int(seconds / 10)):
            self.now += 10
            for worker in beats:
                self.prefect.heartbeats[worker] += timedelta(seconds=10)
            await self.sync()

    def held(self) -> set[str]:
        return {device.id for running in self.pool.engine.running.values() for device in running.devices}

    def state(self, run_id: UUID) -> Any:
        return self.prefect.history[run_id][-1]

    def age(self, run_id: UUID) -> None:
        """Let the run have its state since more than `ABANDONED_AFTER`."""
        state = self.prefect.runs[run_id].state
        assert state
        state.timestamp -= timedelta(minutes=3)

    def use_docker_hosts(self, lost_after_s: float = 300) -> None:
        self.due_jobs.cluster = GpuCluster.model_validate(
            {
                "runtime": "docker",
                "hosts": [{"name": "a", "url": "ssh://a"}],
                "containers": {"lost_after_seconds": lost_after_s},
            }
        )


@in_event_loop
async def test_their_devices_are_not_given_to_others(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    run = await takeover.launch_there(*takeover.devices[:3])
    await takeover.sync()
    assert takeover.held() == set(takeover.devices[:3])
    takeover.pool.submit("small", 1)
    await takeover.pool.wait_for_running("small")
    takeover.pool.submit("big", 3, priority=1000)
    await takeover.pool.settle()
    assert takeover.pool.waiting() == {"big"}, "it is not preempted either: this worker cannot stop it"
    takeover.prefect.set_state(run.id, Completed())
    await takeover.sync()
    await takeover.pool.wait_for_running("small", "big")
    assert not takeover.pool.runtime.stop_requests


@in_event_loop
async def test_devices_that_passed_from_one_run_to_the_next_stay_taken(tmp_path: Path) -> None:
    """The other worker was frozen before it could report the end of the first run."""
    takeover = Takeover(tmp_path)
    ended = await takeover.launch_there(takeover.devices[0])
    await takeover.launch_there(takeover.devices[0])
    await takeover.sync()
    assert takeover.held() == {takeover.devices[0]}
    takeover.prefect.set_state(ended.id, Completed())
    await takeover.sync()
    assert takeover.held() == {takeover.devices[0]}, "the second run has it"


@in_event_loop
async def test_a_suspended_run_keeps_its_devices_until_it_has_stopped(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    run = await takeover.launch_there(takeover.devices[0])
    await takeover.prefect.update_flow_run(run.id, infrastructure_pid="there:1")
    takeover.prefect.set_state(run.id, Suspended())
    await takeover.sync()
    assert takeover.held() == {takeover.devices[0]}
    await takeover.prefect.update_flow_run(run.id, infrastructure_pid=None)
    await takeover.sync()
    assert not takeover.held()


@in_event_loop
async def test_a_process_of_which_nothing_is_left_has_crashed(tmp_path: Path) -> None:
    """Its attempt's folder was removed, and worker and supervisor were killed."""
    takeover = Takeover(tmp_path)
    process, container = takeover.prefect.add_run(), takeover.prefect.add_run()
    for run, identifier in ((process, "here:4711"), (container, "here:host-1:abc")):
        assert await takeover.here.claim(run.id, takeover.devices[:1])
        await takeover.prefect.update_flow_run(run.id, infrastructure_pid=identifier)
        takeover.prefect.set_state(run.id, Running())
    await takeover.pass_time(VANISHED_AFTER_S, new=True)
    assert takeover.state(process.id).name == "Running", "its supervisor may still restore its folder"
    await takeover.pass_time(10, new=True)
    assert takeover.state(process.id).name == "Lost"
    assert "Nothing of it is left" in takeover.state(process.id).message
    assert takeover.state(container.id).name == "Running", "its host may be out of reach"
    assert takeover.pool.job_ends() == {str(process.id): "crashed"}


@in_event_loop
async def test_a_run_of_a_live_machine_is_left_to_it(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    claimed = await takeover.launch_there(takeover.devices[0], running=False)
    running = await takeover.launch_there(takeover.devices[1])
    await takeover.sync()
    await takeover.pass_time(3 * DEAD_AFTER_S, old=True)
    assert takeover.state(claimed.id).name == "Pending", "only its own worker knows whether it was launched"
    assert takeover.state(running.id).name == "Running"
    assert takeover.held() == set(takeover.devices[:2])


@in_event_loop
async def test_a_dead_machine_loses_its_runs_after_a_stated_time(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    claimed = await takeover.launch_there(takeover.devices[0], running=False)
    running = await takeover.launch_there(takeover.devices[1])
    cancelling = await takeover.launch_there(takeover.devices[2])
    takeover.prefect.set_state(cancelling.id, Cancelling())
    await takeover.sync()
    await takeover.pass_time(DEAD_AFTER_S - 10, new=True)
    assert takeover.state(running.id).name == "Running"
    await takeover.pass_time(10, new=True)
    names = [takeover.state(run.id).name for run in (claimed, running, cancelling)]
    assert names == ["Lost", "Lost", "Cancelled"]
    assert "machine there" in takeover.state(running.id).message
    assert takeover.state(running.id).type.value == "CRASHED"
    assert not takeover.held()
    assert takeover.pool.job_ends()[str(running.id)] == "crashed"


@in_event_loop
async def test_a_worker_restarted_under_another_name_is_a_sign_of_life(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    run = await takeover.launch_there(takeover.devices[0])
    restarted = Machines(takeover.prefect.client, POOL, THERE, lambda: "restarted")
    takeover.prefect.heartbeats["restarted"] = utc_now()
    await restarted.sign()
    await takeover.sync()
    await takeover.pass_time(2 * DEAD_AFTER_S, restarted=True)
    assert takeover.state(run.id).name == "Running"


@in_event_loop
async def test_what_was_claimed_here_and_never_launched_waits_again(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    earlier = RunStates(takeover.prefect.client, FakeLease("0"), lambda: "earlier", HERE)
    run = takeover.prefect.add_run()
    assert await earlier.claim(run.id)
    await takeover.sync()
    assert takeover.state(run.id).name == "AwaitingGPU"


@in_event_loop
async def test_nothing_is_decided_without_a_lease(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    run = takeover.prefect.add_run()
    assert await takeover.here.claim(run.id)
    takeover.pool.lease.valid = False
    await takeover.sync()
    assert takeover.state(run.id).name == "Pending"


@in_event_loop
async def test_an_unlaunched_container_waits_again_sooner(tmp_path: Path) -> None:
    """With Docker hosts, the worker that takes over finds all containers itself."""
    takeover = Takeover(tmp_path)
    takeover.use_docker_hosts()
    run = await takeover.launch_there(running=False)
    await takeover.sync()
    assert takeover.state(run.id).name == "Pending"
    takeover.age(run.id)
    await takeover.sync()
    assert takeover.state(run.id).name == "AwaitingGPU"


@in_event_loop
async def test_a_worker_that_stands_by_returns_what_it_never_launched(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    own, foreign = takeover.prefect.add_run(), await takeover.launch_there(running=False)
    assert await takeover.here.claim(own.id)
    takeover.pool.lease.valid = False
    await takeover.other_runs.watch_own()
    assert takeover.state(own.id).name == "AwaitingGPU"
    assert takeover.state(foreign.id).name == "Pending"


@in_event_loop
async def test_a_worker_that_stands_by_stops_what_was_cancelled_or_given_up(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    runs = [takeover.prefect.add_run() for _ in range(3)]
    for run in runs:
        takeover.pool.submit(str(run.id))
    await takeover.pool.wait_for_running(*(str(run.id) for run in runs))
    takeover.pool.lease.valid = False
    cancelled, lost, _ = runs
    takeover.prefect.set_state(cancelled.id, Cancelling())
    await takeover.there.claim(lost.id)
    await takeover.here.report_lost(lost.id, "no sign of life")
    await takeover.other_runs.watch_own()
    await asyncio.sleep(0)
    stopped = {attempt.rpartition(".")[0] for attempt, _ in takeover.pool.runtime.stop_requests}
    assert stopped == {str(cancelled.id), str(lost.id)}


@in_event_loop
async def test_a_machine_is_not_dead_because_the_server_was_away(tmp_path: Path) -> None:
    """No heartbeat could reach the server, and the next one of the live machine is not due yet."""
    takeover = Takeover(tmp_path)
    run = await takeover.launch_there(takeover.devices[0])
    await takeover.sync()
    await takeover.pass_time(60, old=True, new=True)
    takeover.now += DEAD_AFTER_S + 20
    await takeover.sync()
    assert takeover.state(run.id).name == "Running"
    await takeover.pass_time(DEAD_AFTER_S - 10, new=True)
    assert takeover.state(run.id).name == "Running"
    await takeover.pass_time(10, new=True)
    assert takeover.state(run.id).name == "Lost", "it was silent all the time since"


@in_event_loop
async def test_devices_that_become_known_later_are_held(tmp_path: Path) -> None:
    """The cluster block was unusable when this worker took over."""
    takeover = Takeover(tmp_path)
    await takeover.launch_there(*takeover.devices[:2])
    takeover.pool.engine.set_nodes(())
    await takeover.sync()
    assert not takeover.held()
    takeover.pool.engine.set_nodes(declare("1x1"))
    await takeover.sync()
    assert takeover.held() == set(takeover.devices[:1])
    takeover.pool.engine.set_nodes(declare("1x4"))
    await takeover.sync()
    assert takeover.held() == set(takeover.devices[:2])
    takeover.pool.submit("all", 4)
    await takeover.pool.settle()
    assert takeover.pool.waiting() == {"all"}


@in_event_loop
async def test_a_container_does_not_end_with_the_machine_of_its_worker(tmp_path: Path) -> None:
    """It runs on a Docker host that is out of reach, and counts as lost when the block says so."""
    takeover = Takeover(tmp_path)
    takeover.use_docker_hosts(lost_after_s=2 * DEAD_AFTER_S)
    run = await takeover.launch_there(takeover.devices[0])
    await takeover.prefect.update_flow_run(run.id, infrastructure_pid="there:a/gpu-flows-1")
    await takeover.sync()
    await takeover.pass_time(2 * DEAD_AFTER_S - 10, new=True)
    assert takeover.state(run.id).name == "Running"
    assert takeover.held() == {takeover.devices[0]}
    await takeover.pass_time(10, new=True)
    assert takeover.state(run.id).name == "Lost"
    assert "host is out of reach" in takeover.state(run.id).message
    assert not takeover.held()


@in_event_loop
async def test_a_container_that_is_not_found_is_not_followed_for_ever(tmp_path: Path) -> None:
    """Its host died before this worker could adopt it. The worker that launched it lives on and stands by."""
    takeover = Takeover(tmp_path)
    takeover.use_docker_hosts(lost_after_s=100)
    own, foreign = takeover.prefect.add_run(), await takeover.launch_there(takeover.devices[0])
    assert await takeover.here.claim(own.id, takeover.devices[1:2])
    takeover.prefect.set_state(own.id, Running())
    for run in (own, foreign):
        await takeover.prefect.update_flow_run(run.id, infrastructure_pid="machine:a/gpu-flows-1")
    await takeover.sync()
    takeover.now += 200  # another worker led meanwhile
    await takeover.pass_time(100, old=True, new=True)
    assert [takeover.state(run.id).name for run in (own, foreign)] == ["Running", "Running"]
    await takeover.pass_time(10, old=True, new=True)
    assert [takeover.state(run.id).name for run in (own, foreign)] == ["Lost", "Lost"]


@in_event_loop
async def test_what_a_worker_of_an_older_version_claimed_does_not_stay_stuck(tmp_path: Path) -> None:
    takeover = Takeover(tmp_path)
    claimed, here, there = (takeover.prefect.add_run() for _ in range(3))
    for run in (claimed, here, there):
        message = "Claimed by the gpu worker of pool 'gpu' on here."
        takeover.prefect.set_state(run.id, Pending(message=message))
    for run, identifier in ((here, "here:4711"), (there, "there:4711")):
        takeover.prefect.set_state(run.id, Running())
        await takeover.prefect.update_flow_run(run.id, infrastructure_pid=identifier)
    await takeover.sync()
    assert takeover.state(claimed.id).name == "Pending", "it may be about to be launched"
    takeover.age(claimed.id)
    await takeover.pass_time(VANISHED_AFTER_S, new=True)
    assert takeover.state(claimed.id).name == "AwaitingGPU"
    assert takeover.state(here.id).name == "Lost"
    assert takeover.state(there.id).name == "Running", "only its own machine can tell"

"""The queue of a pool follows its runs, limits, holds and dependencies on a fake server."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from fake_pool import FakeRuntime, happens, in_event_loop
from fake_prefect import POOL, FakePrefect
from prefect.client.schemas.objects import FlowRun
from prefect.events import Event
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.dispatch.lease import Unlimited
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.launch_builder import LaunchBuilder
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_edits import build_edit_event
from gpu_flows.prefect_api.run_states import LOST, RunStates
from gpu_flows.prefect_api.worker_log import WorkerLog
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.worker.background_tasks import BackgroundTasks
from gpu_flows.worker.machines import Machines
from gpu_flows.worker.other_runs import OtherRuns
from gpu_flows.worker.queue_sync import QueueSync

LOG = logging.getLogger(__name__)


class Pool:
    """A pool, by default with two devices, whose server and runtime are fakes. Jobs are bare commands."""

    def __init__(self, folder: Path, nodes: str = "1x2") -> None:
        self.prefect, self.runtime = FakePrefect(), FakeRuntime()
        client = self.prefect.client
        self.due_jobs, states = DueJobs(client, self.prefect.pool, set()), RunStates(client)
        self.log = WorkerLog(client)
        store = JobStore(folder)
        launches = LaunchBuilder(
            client,
            self.due_jobs,
            lambda: ("worker", None),
            lambda job_id: store.load_progress(job_id).attempts,
            store.make_checkpoint_directory,
        )
        gateway = PrefectGateway(self.due_jobs, states, launches, self.log)
        self.facts: list[Any] = []
        self.dispatcher = Dispatcher(
            POOL,
            Engine(declare(nodes), make_policy("priority"), can_preempt=True),
            self.runtime,
            gateway,
            store,
            lambda *facts: self.facts.extend(facts),
            LOG,
            clock=lambda: self.runtime.now,
            on_finished=lambda job: self.sync.on_finished(job),
        )
        self.polls: list[float] = []
        self.sync = QueueSync(
            self.due_jobs,
            states,
            gateway,
            self.dispatcher,
            lambda *facts: self.facts.extend(facts),
            BackgroundTasks(LOG),
            self.polls.append,
            OtherRuns(
                self.due_jobs,
                states,
                self.dispatcher,
                Unlimited(),
                Machines(client, POOL, "", lambda: "w"),
                LOG,
            ),
        )
        self.dispatcher.active = True

    def submit(self, name: str, tags: tuple[str, ...] = (), **variables: Any) -> FlowRun:
        variables = {"command": "true", **variables}
        return self.prefect.add_run(name=name, job_variables=variables, tags=list(tags), updated=utc_now())

    def edit(self, run: FlowRun, **variables: Any) -> None:
        known = self.prefect.runs[run.id]
        changes = {"job_variables": {**(known.job_variables or {}), **variables}, "updated": utc_now()}
        self.prefect.runs[run.id] = known.model_copy(update=changes)

    def set(self, **settings: Any) -> None:
        self.prefect.pool = self.prefect.pool.model_copy(update=settings)

    def send(self, run: FlowRun, name: str, state_type: str = "") -> None:
        """Deliver the event of a run's new state."""
        payload = {"validated_state": {"type": state_type}} if state_type else {}
        resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}"}
        self.sync.on_run_event(
            Event.model_validate(
                {"event": f"prefect.flow-run.{name}", "resource": resource, "payload": payload}
            )
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        assert await happens(condition), f"never happened: {what}; {self.codes()}, running {self.running()}"

    async def until_running(self, *names: str) -> None:
        await self.until(lambda: self.running() == set(names), f"{names} run")

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0.001)

    def running(self) -> set[str]:
        return {attempt.launch.job.name for attempt in self.runtime.live.values()}

    def codes(self) -> dict[str, str]:
        return {job.name: reason.code for job, reason in self.sync.reasons(100)}

    def ends(self) -> dict[str, str]:
        return {
            self.prefect.runs[UUID(fact.job_id)].name: fact.outcome
            for fact in self.facts
            if fact.table == "job_ends"
        }

    def submissions(self) -> list[str]:
        return [fact.name for fact in self.facts if fact.table == "jobs"]

    async def lines(self, run: FlowRun) -> list[str]:
        await self.log.send()
        return [log["message"] for log in self.prefect.logs if log["flow_run_id"] == str(run.id)]


# -- limits and pauses ------------------------------------------------------------------------


@in_event_loop
async def test_a_job_over_the_limit_waits_with_a_reason_and_starts_when_there_is_room(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.set(concurrency_limit=1)
    first, _ = pool.submit("a"), pool.submit("b")
    await pool.sync.sync_all()
    await pool.until_running("a")
    assert pool.codes() == {"b": "pool_limit"}
    pool.runtime.exit(str(first.id), 0)
    await pool.until_running("b")
    assert pool.codes() == {}


@in_event_loop
async def test_what_a_job_asked_for_is_recorded_when_it_enters_the_queue(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.set(concurrency_limit=1)
    asks = {"nodes": ["node-*"], "gpu_models": ["V100"], "preemptible": False, "expected_seconds": 90}
    first, second = pool.submit("a"), pool.submit("b", min_gpus=1, max_gpus=2, **asks)

    def queued() -> list[Any]:
        return [fact for fact in pool.facts if fact.table == "job_requests"]

    await pool.sync.sync_all()
    await pool.until_running("a")
    assert [fact.job_id for fact in queued()] == [str(first.id)], "the other one is held back by the limit"
    pool.set(concurrency_limit=2)
    await pool.sync.sync_all()
    await pool.sync.sync_all()
    assert [fact.job_id for fact in queued()] == [str(first.id), str(second.id)], "each is recorded once"
    fact = queued()[1]
    assert (fact.nodes, fact.models, fact.min_gpus, fact.max_gpus) == ('["node-*"]', '["V100"]', 1, 2)
    assert (fact.preemptible, fact.expected_s, fact.predicted) == (False, 90.0, "[]")


@in_event_loop
async def test_a_job_that_another_worker_gives_back_starts_here(tmp_path: Path) -> None:
    """The other worker lost the lease after it had claimed the run, and before it launched it."""
    pool = Pool(tmp_path)
    other = RunStates(pool.prefect.client, worker=lambda: "other", place="there:/")
    run = pool.submit("given back")
    device = next(iter(pool.dispatcher.engine.cluster.devices))
    assert await other.claim(run.id, [device])
    await pool.sync.sync_all()
    assert str(run.id) in pool.dispatcher.engine.running, "its device is taken"
    await other.release_claim(run.id, "the lease was lost")
    pool.send(run, "AwaitingGPU", "SCHEDULED")
    await pool.until_running("given back")


@in_event_loop
async def test_jobs_of_other_machines_count_against_the_limits(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.set(concurrency_limit=1)
    other = RunStates(pool.prefect.client, worker=lambda: "other", place="there:/")
    there = pool.submit("there")
    assert await other.claim(there.id)
    pool.prefect.set_state(there.id, Running())
    pool.submit("here")
    await pool.sync.sync_all()
    await pool.settle()
    assert (pool.running(), pool.codes()) == (set(), {"here": "pool_limit"})
    pool.prefect.set_state(there.id, Completed())
    await pool.sync.sync_all()
    await pool.until_running("here")


@in_event_loop
async def test_a_job_that_another_leader_gave_up_is_stopped(tmp_path: Path) -> None:
    """This worker leads again, and the process still runs here."""
    pool = Pool(tmp_path)
    run = pool.submit("given up")
    await pool.sync.sync_all()
    await pool.until_running("given up")
    pool.prefect.set_state(run.id, Crashed(name=LOST))
    await pool.sync.sync_all()
    await pool.until(lambda: pool.runtime.stop_requests, "it is asked to stop")


@in_event_loop
async def test_the_place_of_a_deleted_job_is_filled_by_the_same_poll(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.set(concurrency_limit=1)
    too_large = pool.submit("a", gpus=2)
    blocked, *_ = pool.dispatcher.engine.cluster.nodes
    pool.dispatcher.engine.set_node(blocked, False, "off")
    pool.submit("b")
    await pool.sync.sync_all()
    assert pool.codes() == {"a": "no_devices", "b": "pool_limit"}
    del pool.prefect.runs[too_large.id]
    await pool.sync.sync_all()
    assert pool.codes() == {"b": "no_devices"}


@in_event_loop
async def test_a_limit_holds_from_the_moment_it_is_set(tmp_path: Path) -> None:
    """Nothing told the worker about the limit: it notices when it starts a job."""
    pool = Pool(tmp_path)
    pool.due_jobs._limits_read = -1e9
    for name in "ab":
        pool.submit(name)
    found = await pool.due_jobs.find_all()
    pool.due_jobs._limits_read = -1e9
    pool.set(concurrency_limit=1)
    await pool.sync._accept(found, read_at=0.0)
    await pool.until(lambda: pool.codes().get("b") == "pool_limit", "the second job is turned back")
    await pool.until_running("a")
    await pool.settle()
    assert pool.running() == {"a"}


@in_event_loop
async def test_an_event_of_the_pool_applies_a_pause(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.set(is_paused=True)
    pool.submit("a")
    await pool.sync.sync_all()
    assert pool.codes() == {"a": "paused"}
    pool.set(is_paused=False)
    event = {"event": "prefect.work-pool.ready", "resource": {"prefect.resource.id": "prefect.work-pool.x"}}
    pool.sync.on_pool_event(Event.model_validate(event))
    await pool.until_running("a")


# -- Docker hosts -----------------------------------------------------------------------------


@in_event_loop
async def test_a_container_is_never_planned_on_several_hosts(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "2x2")
    hosts = ["node-1=ssh://a", "node-2=ssh://b"]
    pool.due_jobs.cluster = GpuCluster.of(hosts=hosts)
    container = {"image": "lab/mnist", "may_span_nodes": True}
    pool.submit("first", image="lab/mnist", nodes=["node-1"])
    pool.submit("second", image="lab/mnist", nodes=["node-2"])
    await pool.sync.sync_all()
    await pool.until_running("first", "second")
    pair, large = pool.submit("pair", gpus=2, **container), pool.submit("large", gpus=4, **container)
    for _ in range(2):
        await pool.sync.sync_all()
    await pool.until(lambda: pool.ends() == {"large": "refused"}, "the larger job is refused")
    assert (pool.running(), pool.codes()) == ({"first", "second"}, {"pair": "fragmented"})
    notice = "may_span_nodes has no effect: a container runs on one host."
    assert await pool.lines(pair) == [notice], "it is said once"
    assert [line for line in await pool.lines(large) if "Refused" in line] == [
        "Refused: It needs 4 GPUs on one node, and the largest node has 2 of them. "
        "Ask for 2 or fewer: a container runs on one host."
    ]
    ((_, reason),) = pool.sync.reasons(100)
    assert reason.fix == "It starts when one node has enough: a container runs on one host."


# -- edits and holds --------------------------------------------------------------------------


@in_event_loop
async def test_a_held_job_starts_when_it_is_released(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    run = pool.submit("a", hold=True)
    await pool.sync.sync_all()
    await pool.settle()
    assert (pool.running(), pool.codes()) == (set(), {"a": "held"})
    assert pool.sync.waits(str(run.id))
    pool.edit(run, hold=False)
    pool.sync.on_run_event(Event.model_validate(build_edit_event(str(run.id), str(pool.prefect.pool.id))))
    await pool.until_running("a")
    assert not pool.sync.waits(str(run.id))


@in_event_loop
async def test_a_poll_notices_a_changed_priority(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    blocker = pool.submit("blocker", gpus=2, preemptible=False)
    await pool.sync.sync_all()
    await pool.until_running("blocker")
    pool.submit("a", gpus=2)
    later = pool.submit("b", gpus=2)
    await pool.sync.sync_all()
    assert [job.name for job, _ in pool.sync.reasons(10)] == ["a", "b"]
    pool.edit(later, priority=5)
    await pool.sync.sync_all()
    assert [job.name for job, _ in pool.sync.reasons(10)] == ["b", "a"]
    pool.runtime.exit(str(blocker.id), 0)
    await pool.until_running("b")


@in_event_loop
async def test_a_job_that_is_cancelled_while_it_is_held_has_ended(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    by_event, by_poll = pool.submit("a", hold=True), pool.submit("b", hold=True)
    await pool.sync.sync_all()
    pool.prefect.set_state(by_event.id, Cancelled())
    pool.send(by_event, "Cancelled", "CANCELLED")
    await pool.until(lambda: pool.ends() == {"a": "cancelled"}, "the first end is recorded")
    pool.prefect.set_state(by_poll.id, Cancelled())
    await pool.sync.sync_all()
    assert pool.ends() == {"a": "cancelled", "b": "cancelled"}
    assert pool.codes() == {}


# -- dependencies -----------------------------------------------------------------------------


@in_event_loop
async def test_a_job_starts_after_the_runs_that_it_depends_on(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    first = pool.submit("first")
    elsewhere = pool.prefect.add_run(due_in_s=600, name="elsewhere")
    pool.submit("then", after=[str(first.id), str(elsewhere.id)])
    await pool.sync.sync_all()
    await pool.until_running("first")
    assert pool.codes() == {"then": "dependency"}
    pool.runtime.exit(str(first.id), 0)
    await pool.settle()
    assert pool.codes() == {"then": "dependency"}
    pool.prefect.set_state(elsewhere.id, Completed())
    pool.send(elsewhere, "Completed", "COMPLETED")
    await pool.until_running("then")


@in_event_loop
async def test_a_job_after_a_failed_run_is_refused_with_its_name(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    first = pool.submit("first")
    then = pool.submit("then", after=[str(first.id)])
    last = pool.submit("last", after=[str(then.id)])
    await pool.sync.sync_all()
    await pool.until_running("first")
    pool.runtime.exit(str(first.id), 1)
    await pool.until(lambda: pool.prefect.state_names(then.id)[-1] == "Refused", "it is refused")
    message = str(pool.prefect.history[then.id][-1].message)
    assert "'first'" in message
    assert "ended as Failed" in message
    pool.send(then, "Refused", "FAILED")
    await pool.until(lambda: pool.prefect.state_names(last.id)[-1] == "Refused", "the next one as well")
    await pool.sync.sync_all()
    assert pool.ends() == {"first": "failed", "then": "refused", "last": "refused"}
    assert sorted(pool.submissions()) == ["first", "last", "then"]
    assert any(line.startswith("Refused: ") for line in await pool.lines(then))


@in_event_loop
async def test_a_job_after_any_end_starts_after_a_failure(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    first = pool.submit("first")
    pool.submit("then", after_any=[str(first.id)])
    await pool.sync.sync_all()
    await pool.until_running("first")
    assert pool.codes() == {"then": "dependency"}
    pool.runtime.exit(str(first.id), 1)
    await pool.until_running("then")


@in_event_loop
async def test_a_job_after_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    run = pool.submit("a", after=[str(uuid4())])
    await pool.sync.sync_all()
    await pool.until(lambda: pool.prefect.state_names(run.id)[-1] == "Refused", "it is refused")
    assert "does not exist" in str(pool.prefect.history[run.id][-1].message)


@in_event_loop
async def test_a_dependency_that_is_preempted_is_waited_for(tmp_path: Path) -> None:
    """Its process may report Crashed before the worker returns it to the queue."""
    pool = Pool(tmp_path)
    first = pool.submit("first", gpus=2)
    await pool.sync.sync_all()
    await pool.until_running("first")
    then = pool.submit("then", after=[str(first.id)])
    await pool.sync.sync_all()
    pool.prefect.set_state(first.id, Failed(name="Crashed"))
    pool.send(first, "Crashed", "CRASHED")
    await pool.settle()
    assert pool.codes() == {"then": "dependency"}
    assert pool.prefect.state_names(then.id)[-1] == "Scheduled"


# -- records and logs -------------------------------------------------------------------------


@in_event_loop
async def test_a_run_with_a_misspelt_variable_is_recorded_and_refused_once(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    run = pool.submit("a", gpsu=2)
    await pool.sync.sync_all()
    await pool.sync.sync_all()
    await pool.until(lambda: pool.prefect.state_names(run.id)[-1] == "Refused", "it is refused")
    await pool.sync.sync_all()
    assert pool.submissions() == ["a"]
    assert [fact.outcome for fact in pool.facts if fact.table == "job_ends"] == ["refused"]
    (line,) = await pool.lines(run)
    assert "Did you mean 'gpus'?" in line


@in_event_loop
async def test_the_log_tells_the_story_of_a_preempted_run(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    low = pool.submit("low", gpus=2)
    await pool.sync.sync_all()
    await pool.until_running("low")
    high = pool.submit("high", gpus=2, priority=10)
    await pool.sync.sync_all()
    await pool.until(lambda: pool.runtime.stop_requests, "it is asked to stop")
    pool.runtime.exit(str(low.id), 85)
    await pool.until_running("high")
    pool.runtime.exit(str(high.id), 0)
    await pool.until_running("low")
    lines = await pool.lines(low)
    beginnings = (
        "Starting on",
        "Asked to save and stop. Preempted for high",
        "Stopped.",
        "Starting again on",
    )
    assert all(line.startswith(beginning) for line, beginning in zip(lines, beginnings, strict=True))
    assert "GPU 0-1" in lines[0]
    assert "attempt 2" in lines[3]


# -- polls ------------------------------------------------------------------------------------


@in_event_loop
async def test_a_run_that_becomes_due_later_is_polled_for(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.prefect.add_run(due_in_s=30)
    await pool.sync.sync_all()
    assert [round(delay) for delay in pool.polls] == [30]


@in_event_loop
async def test_a_postponed_run_leaves_the_queue_and_is_not_recorded_as_ended(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    run = pool.submit("a", hold=True)
    await pool.sync.sync_all()
    state = pool.prefect.history[run.id][-1].model_copy(deep=True)
    state.state_details.scheduled_time = utc_now() + timedelta(hours=1)  # type: ignore[assignment]
    pool.prefect.set_state(run.id, state)
    await pool.sync.sync_all()
    assert (pool.codes(), pool.ends()) == ({}, {})


@in_event_loop
async def test_waiting_jobs_are_counted_by_the_reasons_that_they_have(tmp_path: Path) -> None:
    """In the queue, whose devices are released, and held back; the last, by a limit and by hand."""
    pool = Pool(tmp_path)
    pool.prefect.pool.concurrency_limit = 5
    for number in range(6):
        pool.submit(str(number), gpus=1 + number % 2)
    pool.submit("held", hold=True)
    await pool.sync.sync_all()
    await happens(lambda: len(pool.runtime.live) == 1)
    counted, listed = pool.sync.count(), list(pool.sync.reasons(100))
    assert counted.by_reason == Counter(reason.code for _, reason in listed)
    assert set(counted.by_reason) >= {"pool_limit", "held"}
    assert counted.gpus == sum(job.gpus for job, _ in listed)

"""Which due jobs may enter the queue, and the reasons of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fake_prefect import FakePrefect
from prefect.states import Cancelled, Completed, Running

from gpu_flows.prefect_api.admission import Admission
from gpu_flows.prefect_api.dependencies import Dependencies
from gpu_flows.prefect_api.job_builder import DueJob
from gpu_flows.schedulers.model import Job


class Pool:
    """An admission, and the engine's queue as it results from its decisions."""

    def __init__(self, **settings: Any) -> None:
        self.prefect = FakePrefect()
        self.prefect.pool = self.prefect.pool.model_copy(update=settings)
        self.admission = Admission(self.prefect.pool, set(), Dependencies(self.prefect.client))
        self.executing: set[str] = set()
        self.queue: set[str] = set()
        self._number = 0

    def add_queue(self, name: str, **settings: Any) -> None:
        self.prefect.add_queue(name, **settings)
        self.admission.set_work_queues(self.prefect.work_queues)

    def submit(self, *job_ids: str, queue: str = "default", priority: int = 0, **fields: Any) -> None:
        gpus = fields.pop("gpus", 1)
        for job_id in job_ids:
            self._number += 1
            job = Job(job_id, float(self._number), gpus, queue_priority=priority)
            self.admission.put(DueJob(job, queue, **fields))

    def set(self, **settings: Any) -> None:
        self.admission.pool = self.admission.pool.model_copy(update=settings)

    def start(self, *job_ids: str) -> None:
        self.queue -= set(job_ids)
        self.executing |= set(job_ids)

    def update(self) -> set[str]:
        changes = self.admission.update(self.executing)
        assert not self.queue & {job.id for job in changes.admit}, "nothing is admitted twice"
        assert set(changes.withdraw) <= self.queue
        self.queue = self.queue - set(changes.withdraw) | {job.id for job in changes.admit}
        return self.queue

    def codes(self) -> dict[str, str]:
        return {job.id: reason.code for job, reason in self.admission.reasons()}


def test_a_job_enters_when_its_memory_is_predicted() -> None:
    pool, job = Pool(), Job("a")
    pool.admission.put(DueJob(job, "default", is_predicting=True))
    assert pool.update() == set()
    assert pool.codes() == {"a": "predicting"}
    pool.admission.put(DueJob(replace(job, memory_mb=1000), "default"))
    assert pool.update() == {"a"}
    assert pool.codes() == {}


# -- limits and pauses ------------------------------------------------------------------------


def test_without_limits_every_job_enters() -> None:
    pool = Pool()
    pool.submit("a", "b")
    assert pool.update() == {"a", "b"}
    assert pool.codes() == {}


def test_a_new_job_does_not_cost_a_look_at_those_that_wait() -> None:
    pool = Pool()
    pool.submit(*(f"job-{number}" for number in range(1000)))
    pool.update()
    [line] = pool.admission._lines.values()
    line.places = CountingList(line.places)
    pool.submit("new")
    assert "new" in pool.update()
    pool.admission.discard("job-500")
    assert len(pool.update()) == 1001, "the engine is told by whoever withdraws a job"
    assert line.places.reads < 100, "a binary search reads a few places"


class CountingList(list[Any]):
    """A list that counts the elements that are read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.reads += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        for element in super().__iter__():
            self.reads += 1
            yield element


def test_the_limit_of_the_pool_counts_jobs_that_execute() -> None:
    pool = Pool(concurrency_limit=2)
    pool.submit("a", "b", "c", "d")
    assert pool.update() == {"a", "b"}
    assert pool.codes() == {"c": "pool_limit", "d": "pool_limit"}
    pool.start("a")
    assert pool.update() == {"b"}
    pool.executing.clear()
    assert pool.update() == {"b", "c"}
    pool.set(concurrency_limit=0)
    assert pool.update() == set(), "a lowered limit takes jobs back"
    pool.set(concurrency_limit=None)
    assert pool.update() == {"b", "c", "d"}


def test_the_limit_of_a_work_queue_leaves_other_queues_alone() -> None:
    pool = Pool()
    pool.add_queue("narrow", concurrency_limit=1)
    pool.add_queue("wide")
    pool.submit("a", "b", queue="narrow")
    pool.submit("c", "d", queue="wide")
    assert pool.update() == {"a", "c", "d"}
    assert pool.codes() == {"b": "queue_limit"}
    pool.set(concurrency_limit=2)
    assert pool.update() == {"a", "c"}
    assert pool.codes() == {"b": "queue_limit", "d": "pool_limit"}


def test_the_priority_of_the_work_queue_decides_who_gets_the_last_slot() -> None:
    pool = Pool(concurrency_limit=1)
    pool.submit("a", queue="later", priority=2)
    pool.submit("b", queue="first", priority=1)
    assert pool.update() == {"b"}


def test_an_earlier_job_takes_the_place_of_a_later_one() -> None:
    pool = Pool(concurrency_limit=1)
    pool.submit("later", priority=2)
    assert pool.update() == {"later"}
    pool.submit("urgent", priority=1)
    assert pool.update() == {"urgent"}


def test_a_coordinator_does_not_count_against_the_limits() -> None:
    pool = Pool(concurrency_limit=1)
    pool.submit("coordinator", gpus=0)
    pool.submit("a", "b")
    assert pool.update() == {"coordinator", "a"}
    pool.start("coordinator")
    assert pool.update() == {"a"}


@pytest.mark.parametrize("paused", ["pool", "queue"])
def test_a_pause_holds_everything_back_and_says_how_to_resume(paused: str) -> None:
    pool = Pool(is_paused=paused == "pool")
    pool.add_queue("default", is_paused=paused == "queue")
    pool.submit("a")
    pool.submit("coordinator", gpus=0)
    assert pool.update() == set()
    reasons = [reason for _, reason in pool.admission.reasons()]
    assert {reason.code for reason in reasons} == {"paused"}
    assert f"prefect work-{paused} resume" in reasons[0].fix
    pool.set(is_paused=False)
    pool.admission.set_work_queues([])
    assert pool.update() == {"a", "coordinator"}


def test_every_reason_says_what_helps() -> None:
    pool = Pool(concurrency_limit=1)
    pool.add_queue("narrow", concurrency_limit=0)
    pool.submit("a", "b")
    pool.submit("c", queue="narrow")
    pool.submit("d", held=True)
    pool.submit("e", after=("x",))
    pool.update()
    reasons = dict(pool.admission.reasons())
    assert len(reasons) == 4
    assert all(reason.summary and reason.fix for reason in reasons.values())


def test_jobs_of_an_earlier_worker_count_against_the_limit_of_their_queue() -> None:
    pool = Pool()
    pool.add_queue("narrow", concurrency_limit=1)
    pool.submit("a", queue="narrow")
    pool.executing.add("old")
    assert pool.update() == {"a"}, "it is not known yet in which queue it runs"
    assert pool.admission.unknown_active() == ["old"]
    pool.admission.describe_active(DueJob(Job("old"), "narrow"))
    assert pool.update() == set()


# -- the check before a start -----------------------------------------------------------------


def test_a_limit_that_was_lowered_after_the_plan_is_kept() -> None:
    pool = Pool()
    pool.submit("a", "b", "c")
    pool.update()
    pool.start("a", "b", "c")  # one plan starts all three, and nothing was updated since
    pool.set(concurrency_limit=2)
    objections = [pool.admission.find_objection(job_id) for job_id in "abc"]
    assert [objection.code if objection else "" for objection in objections] == ["", "", "pool_limit"]
    pool.set(is_paused=True)
    objection = pool.admission.find_objection("c")
    assert objection
    assert objection.code == "paused"


def test_a_turned_back_job_is_held_and_starts_when_there_is_room() -> None:
    pool = Pool()
    pool.submit("a", "b")
    pool.update()
    pool.start("a", "b")
    pool.set(concurrency_limit=1)
    assert not pool.admission.find_objection("a")
    assert pool.admission.find_objection("b")
    pool.update()
    pool.executing.discard("b")
    pool.queue.add("b")  # the engine has it again
    pool.admission.put(DueJob(Job("b", 2.0), "default"), is_given=True)
    assert pool.update() == set()
    assert pool.codes() == {"b": "pool_limit"}
    pool.executing.clear()
    assert pool.update() == {"b"}
    assert not pool.admission.find_objection("b"), "an ended job no longer counts"


def test_a_job_that_moves_is_not_turned_back_by_itself() -> None:
    pool = Pool(concurrency_limit=1)
    pool.submit("a")
    pool.update()
    pool.start("a")
    for _ in range(2):  # once for each of its attempts
        assert not pool.admission.find_objection("a")
        pool.update()


# -- edits, holds, dependencies ---------------------------------------------------------------


def test_an_edited_job_replaces_the_one_in_the_queue() -> None:
    pool = Pool()
    pool.submit("a")
    pool.update()
    edited = Job("a", 1.0, priority=9)
    pool.admission.put(DueJob(edited, "default"))
    changes = pool.admission.update(set())
    assert changes.admit == [edited]
    assert changes.withdraw == []
    pool.admission.put(DueJob(edited, "default"))
    assert pool.admission.update(set()).admit == [], "an unchanged job is not submitted again"


def test_hold_takes_a_waiting_job_back_until_it_is_released() -> None:
    pool = Pool()
    job = Job("a", 1.0)
    for held, queue, codes in [
        (True, set(), {"a": "held"}),
        (False, {"a"}, {}),
        (True, set(), {"a": "held"}),
    ]:
        pool.admission.put(DueJob(job, "default", held=held))
        assert (pool.update(), pool.codes()) == (queue, codes)
    assert pool.admission.holds("a")


def test_a_job_enters_when_all_runs_that_it_waits_for_have_completed() -> None:
    pool = Pool()
    runs = [pool.prefect.add_run(name=name) for name in ("first", "second")]
    ids = tuple(str(run.id) for run in runs)
    pool.submit("a", after=ids)
    assert pool.admission.awaited_runs == set(ids)
    pool.update()
    ((_, unread),) = pool.admission.reasons()
    assert unread.summary == f"It starts after run {ids[0][:8]} and run {ids[1][:8]} have completed."

    def read() -> set[str]:
        asyncio.run(pool.admission.dependencies.read(pool.admission.awaited_runs))
        return pool.update()

    assert read() == set()
    ((_, reason),) = pool.admission.reasons()
    assert reason.summary == "It starts after 'first' (Scheduled) and 'second' (Scheduled) have completed."
    pool.prefect.set_state(runs[0].id, Completed())
    assert read() == set()
    pool.prefect.set_state(runs[1].id, Completed())
    assert read() == {"a"}
    assert not pool.admission.awaited_runs


def test_a_job_after_any_end_enters_when_the_run_has_ended() -> None:
    pool = Pool()
    run = pool.prefect.add_run(name="first")
    pool.submit("a", after_any=(str(run.id),))

    def read() -> set[str]:
        pool.update()
        asyncio.run(pool.admission.dependencies.read(pool.admission.awaited_runs))
        return pool.update()

    assert read() == set()
    ((_, reason),) = pool.admission.reasons()
    assert reason.summary == "It starts after 'first' (Scheduled) has ended."
    pool.prefect.set_state(run.id, Cancelled())
    pool.executing = {str(run.id)}
    assert read() == set(), "it may be a preempted run, which is returned to the queue"
    pool.executing = set()
    assert pool.update() == set(), "what was read meanwhile is outdated"
    assert read() == {"a"}


def test_a_run_that_ended_otherwise_refuses_the_jobs_after_it() -> None:
    pool = Pool()
    run = pool.prefect.add_run(name="first")
    run_id, absent = str(run.id), "00000000-0000-0000-0000-000000000000"
    dependencies = pool.admission.dependencies

    def refusal(*after: str, may_continue: tuple[str, ...] = ()) -> str:
        asyncio.run(dependencies.read(after))
        return str(dependencies.find_refusal(after, may_continue) or "")

    pool.prefect.set_state(run.id, Running())
    assert refusal(run_id) == ""
    pool.prefect.set_state(run.id, Cancelled())
    assert refusal(run_id, may_continue=(run_id,)) == "", "it may be a preempted run"
    assert f"'first' ({run_id}) had completed, and that run ended as Cancelled" in refusal(run_id)
    assert f"run {absent} had completed, and that run does not exist" in refusal(absent)


def test_a_completed_run_is_not_read_again() -> None:
    pool = Pool()
    run = pool.prefect.add_run()
    pool.prefect.set_state(run.id, Completed())
    for _ in range(3):
        asyncio.run(pool.admission.dependencies.read([str(run.id)]))
    assert pool.prefect.calls.count("read_flow_runs") == 1

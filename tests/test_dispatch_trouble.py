"""What the dispatcher does when launches and reports fail: no end is missed, and no more waits than must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

from fake_pool import FakeGateway, FakePool, FakeRuntime, ScriptedPolicy, in_event_loop

from gpu_flows.analytics.facts import AttemptEnded, JobEnded
from gpu_flows.common.retry import Backoff
from gpu_flows.dispatch import execution_runner
from gpu_flows.runtimes.base import Attempt, End, Intent, Launch, NodeUnreachable
from gpu_flows.schedulers.policy import make_policy


class RuntimeWithAwayNodes(FakeRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        if launch.node in self.away:
            raise NodeUnreachable(f"{launch.node} does not answer")
        return await super().launch(launch, still_wanted)


@in_event_loop
async def test_an_unreachable_node_delays_only_jobs_that_need_it(tmp_path: Path) -> None:
    runtime = RuntimeWithAwayNodes()
    pool = FakePool(tmp_path, "2x2", make_policy("fifo"), runtime=runtime)
    runtime.away = {"node-1"}
    with mock.patch.object(execution_runner, "PAUSE_WHEN_UNREACHABLE_S", 0.2):
        pool.submit("a", 2)
        await pool.wait_for_running("a")
        assert runtime.live["a"].launch.node == "node-2", "it does not wait for node-1"
        pool.submit("b", 2)
        await pool.wait_for(lambda: pool.waiting() == {"b"}, "it waits for node-1")
        runtime.away = set()
        await pool.wait_for_running("a", "b")
    assert runtime.live["b"].launch.node == "node-1", "it is tried again"
    assert pool.engine.cluster.nodes["node-1"].up
    assert not pool.engine.cluster.nodes["node-1"].detail


@in_event_loop
async def test_a_node_that_its_host_reports_as_down_stays_down(tmp_path: Path) -> None:
    runtime = RuntimeWithAwayNodes()
    pool = FakePool(tmp_path, "2x2", make_policy("fifo"), runtime=runtime)
    runtime.away = {"node-1"}
    with mock.patch.object(execution_runner, "PAUSE_WHEN_UNREACHABLE_S", 0.05):
        pool.submit("a", 2)
        await pool.wait_for_running("a")
        pool.engine.set_node("node-1", False, "its Docker engine does not answer")
        await asyncio.sleep(0.1)
    assert not pool.engine.cluster.nodes["node-1"].up


class UnstartedOnce(FakeRuntime):
    async def wait(self, attempt: Attempt) -> End:
        if attempt.launch.attempt == 1:
            self.live.pop(attempt.launch.job.id)
            return End(unstarted=True)
        return await super().wait(attempt)


@in_event_loop
async def test_an_attempt_that_did_not_start_is_repeated(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, runtime=UnstartedOnce())
    pool.submit("a")
    await pool.wait_for(lambda: pool.runtime.launched == ["a.1", "a.2"], "it is launched again")
    await pool.wait_for_running("a")
    assert pool.outcomes("a") == ["unstarted"]
    assert not pool.job_ends()
    pool.runtime.exit("a", 0)
    await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "it completes")
    await pool.wait_for(lambda: not pool.runtime.known, "nothing is left of it")


class LaggingClock(FakeRuntime):
    """The clock of its host is an hour behind."""

    async def wait(self, attempt: Attempt) -> End:
        return replace(await super().wait(attempt), ended=self.now - 3600)


@in_event_loop
async def test_no_attempt_ends_before_it_started(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, runtime=LaggingClock())
    pool.submit("a")
    await pool.wait_for_running("a")
    started = pool.runtime.live["a"].started
    pool.runtime.exit("a", 0)
    await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "it completes")
    ends = [fact.ended for fact in pool.facts if isinstance(fact, AttemptEnded | JobEnded)]
    assert ends == [started, started]


class BrokenGateway(FakeGateway):
    """Fails in a way that nobody foresaw, a number of times."""

    launch_errors = end_errors = 0

    async def report_launch(self, attempt: Attempt) -> bool:
        if self.launch_errors:
            self.launch_errors -= 1
            raise ValueError("unforeseen")
        return True

    async def report_end(
        self, launch: Launch, end: End, intent: Intent | None, why: str = "", out_of_memory: bool = False
    ) -> tuple[str, str]:
        if self.end_errors:
            self.end_errors -= 1
            raise ValueError("unforeseen")
        return await super().report_end(launch, end, intent, why, out_of_memory)


@in_event_loop
async def test_no_error_while_reporting_loses_an_attempt(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    gateway = BrokenGateway(runtime, tmp_path / "checkpoints")
    gateway.launch_errors, gateway.end_errors = 1, 3
    pool = FakePool(tmp_path, runtime=runtime, gateway=gateway)
    with mock.patch.object(execution_runner, "AFTER_ERRORS", Backoff(first_s=0.001)):
        pool.submit("a")
        await pool.wait_for_running("a")
        await pool.settle()
        assert pool.dispatcher.is_executing("a"), "it is not lost sight of"
        runtime.exit("a", 0)
        await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "its end is reported")
    assert pool.outcomes("a") == ["completed"]
    await pool.wait_for(lambda: not runtime.known, "nothing is left of it")


@in_event_loop
async def test_what_a_policy_remarks_is_recorded_once_and_so_is_its_end(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    policy.remark = "Another one decides."
    pool = FakePool(tmp_path, "1x4", policy)

    def recorded() -> list[str]:
        return [fact.error for fact in pool.facts if fact.table == "decisions" and fact.error]

    pool.submit("a")
    await pool.wait_for_running("a")
    pool.submit("b")
    await pool.wait_for_running("a", "b")
    assert recorded() == ["Another one decides."]
    policy.remark = ""
    pool.submit("c")
    await pool.wait_for_running("a", "b", "c")
    assert recorded() == ["Another one decides.", "It decides again."]

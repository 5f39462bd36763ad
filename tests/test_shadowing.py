"""Shadows of a live pool, in the real forecasting process: they act on nothing and can hold up nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import shadow_process
from fake_pool import FakePool, happens, in_event_loop
from shadow_process import ask

from gpu_flows.analytics.facts import ShadowDecided, ShadowProjected
from gpu_flows.common.retry import Backoff
from gpu_flows.forecasting import forecaster as module
from gpu_flows.forecasting.forecaster import Forecaster
from gpu_flows.forecasting.messages import Settings
from gpu_flows.forecasting.shadow_record import ShadowRecord
from gpu_flows.forecasting.shadowing import DIED
from gpu_flows.forecasting.state_file import read_state
from gpu_flows.schedulers.forecast import shadows as pure
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.prediction.estimate import Estimate
from tests.test_policy_process import plugin as plugin

Choices = Mapping[str, Mapping[str, Any]]


class Shadowed:
    """A pool with shadows, which a test may edit as users edit the block."""

    def __init__(self, folder: Path, shadows: Choices, cluster: str) -> None:
        self.pool = FakePool(folder, cluster)
        self.shadows, self.saves = shadows, 0
        self.policy = self.pool.engine.policy.name  # that is simulated
        self.record = ShadowRecord("pool", self._keep, logging.getLogger("shadows"))
        self.forecaster = Forecaster(
            "pool",
            folder,
            self.pool.engine,
            lambda job: Estimate(job.expected_s, job.expected_s, "stated") if job.expected_s else None,
            lambda: Settings(self.policy, shadows=self.shadows, saved=str(self.saves)),
            self._keep,
            logging.getLogger("forecasts"),
            self.record.use,
            clock=lambda: self.pool.runtime.now,
        )

    def _keep(self, *facts: Any) -> None:
        self.pool.facts.extend(facts)

    def save(self, shadows: Choices) -> None:
        self.shadows, self.saves = shadows, self.saves + 1
        self.pool.dispatcher.plan_again()

    async def submit(self, job_id: str, gpus: int = 1, **more: Any) -> None:
        """Submit a job when the child is not busy, so that the decision about it is shown to the shadows."""
        assert await happens(self.forecaster._may_send)
        self.pool.submit(job_id, gpus, **more)
        await self.pool.settle()

    def errors(self) -> dict[str, str]:
        return {name: self.record.describe(name)["error"] for name in self.shadows}

    def plans(self) -> set[str]:
        return {name for name in self.shadows if self.record.describe(name)["plans"]}

    def verdicts(self, shadow: str) -> list[ShadowDecided]:
        return [each for each in self.pool.facts if isinstance(each, ShadowDecided) and each.shadow == shadow]


@asynccontextmanager
async def shadowed_pool(folder: Path, shadows: Choices, cluster: str = "1x2") -> AsyncIterator[Shadowed]:
    """A pool whose shadows have begun to plan, as far as they can."""
    found = Shadowed(folder, shadows, cluster)
    found.pool.dispatcher.spectator = found.forecaster
    with mock.patch.object(module, "RESTART", Backoff(first_s=0.05)):
        task = asyncio.ensure_future(found.forecaster.keep_forecasting())
        try:
            assert await happens(lambda: all(map(bool, found.errors().values())) or found.plans())
            yield found
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await found.pool.dispatcher.close()
    assert not [each for each in psutil.Process().children(True) if "policy_child" in " ".join(_line(each))]


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@in_event_loop
async def test_shadows_plan_beside_the_policy_and_are_compared_with_it(tmp_path: Path) -> None:
    async with shadowed_pool(tmp_path, {"sjf": {}, "priority": {}}) as found:
        pool = found.pool
        await found.submit("running", 1, expected_s=100.0)
        await pool.wait_for_running("running")
        assert await happens(lambda: found.verdicts("sjf"))
        await found.submit("wide", 2, priority=5, expected_s=50.0)
        # The policy stops `running` for it; sjf does not preempt.
        assert await happens(lambda: len(found.verdicts("sjf")) > 1)
        last = found.verdicts("sjf")[1]
        assert (last.policy, last.pool, last.same_jobs, last.started) == ("priority", "pool", False, 0)
        assert last.agreement == 0
        await pool.wait_for_stop_request("running")
        same = found.verdicts("priority")
        assert all(each.same_devices and each.agreement == 1 for each in same)
        assert len(same) == len(found.verdicts("sjf"))
        assert await happens(
            lambda: {each.shadow for each in pool.facts if isinstance(each, ShadowProjected)} >= {"sjf"}
        )


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        ("raises", "ZeroDivisionError: division by zero (plugin.py"),
        ("dies", "its process ended with exit code 3"),
        ("sleeps", "it did not plan within 1 s"),
    ],
)
def test_a_shadow_that_misbehaves_is_suspended_until_the_block_is_saved(
    tmp_path: Path, deed: str, error: str
) -> None:
    @in_event_loop
    async def check() -> None:
        async with shadowed_pool(tmp_path, {"bad": {}, "sjf": {}}) as found:
            pool = found.pool
            assert await happens(lambda: found.plans() == {"bad", "sjf"})
            await found.submit(deed, 1)
            await pool.wait_for_running(deed)
            assert await happens(lambda: error in found.errors()["bad"]), found.errors()
            assert [each.error for each in found.verdicts("bad")] == [found.errors()["bad"]]
            assert not found.errors()["sjf"]
            pool.runtime.exit(deed, 0)
            await pool.wait_for_running()
            found.save(found.shadows)
            assert await happens(lambda: found.plans() == {"bad", "sjf"})
            await found.submit("good", 1)
            assert await happens(lambda: found.verdicts("bad")[-1].same_devices)

    check()


@in_event_loop
async def test_unknown_shadows_are_told_and_the_others_plan(tmp_path: Path) -> None:
    async with shadowed_pool(tmp_path, {"sjff": {}, "fifo": {"skip": "perhaps"}, "sjf": {}}) as found:
        assert await happens(lambda: found.plans() == {"sjf"})
        assert "Did you mean 'sjf'" in found.errors()["sjff"]
        assert "skip" in found.errors()["fifo"]
        found.save({"srtf": {}})
        assert await happens(lambda: found.plans() == {"srtf"})
        assert found.record.describe("sjf") == {"name": "sjf", "plans": False, "error": ""}


# --- what a shadow does to the process that it plans in ---


class Endless(Fifo):
    name = "endless"

    def plan(self, state: State) -> None:
        while True:
            super().plan(state)
            state.draft.rollback()


def test_a_plan_without_end_is_broken_off(tmp_path: Path) -> None:
    with mock.patch.object(pure, "PLAN_WITHIN_S", 0.2):
        verdict, errors = ask(tmp_path, Endless)
    assert verdict["verdict"]["error"] == "it did not plan within 0.2 s"
    assert errors == {"errors": {"endless": "it did not plan within 0.2 s"}}


def test_a_shadow_that_ends_the_process_is_not_asked_again_until_it_is_saved(tmp_path: Path) -> None:
    def ask_in_process(saved: str) -> tuple[int, str]:
        command = [sys.executable, shadow_process.__file__, str(tmp_path), saved]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert ask_in_process("1") == (3, "")
    assert ask_in_process("1") == (0, json.dumps([{"errors": {"deadly": DIED}}]) + "\n")
    assert ask_in_process("2") == (3, ""), "it was saved again"


@in_event_loop
async def test_a_policy_that_ends_the_process_when_it_is_simulated_stops_only_the_forecasts(
    tmp_path: Path,
) -> None:
    async with shadowed_pool(tmp_path, {"sjf": {}}) as found:
        found.pool.submit("running", 2, expected_s=100.0)
        await found.pool.wait_for_running("running")
        found.policy = "bad"
        found.pool.submit("dies", 1, expected_s=100.0)
        outcome = lambda: found.forecaster.outcome  # noqa: E731
        assert await happens(lambda: "failed 3 times under policy 'bad'" in outcome().why)
        assert "exit code 3" in outcome().why
        await found.submit("next", 1, expected_s=100.0)
        assert await happens(lambda: (state := read_state(tmp_path)) and len(state.jobs()) == 3)
        assert await happens(lambda: found.plans() == {"sjf"}), "shadows go on"
        found.save({"sjf": {}})
        assert await happens(lambda: "failed 3 times" not in outcome().why), "it is tried again"

"""A job whose start came too late waits again, also if its launch was reported meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_pool import in_event_loop
from test_queue_sync import Pool

from gpu_flows.runtimes.base import Attempt, End


@pytest.mark.parametrize("answers_after_s", [0.0, 0.004, 0.008, 0.05])
def test_a_late_start_is_repeated_wherever_the_report_of_its_launch_is(
    tmp_path: Path, answers_after_s: float
) -> None:
    @in_event_loop
    async def check() -> None:
        pool = Pool(tmp_path)
        wait, called = pool.runtime.wait, pool.prefect._called

        async def wait_or_come_late(attempt: Attempt) -> End:
            if len(pool.runtime.launched) > 1:
                return await wait(attempt)
            await asyncio.sleep(answers_after_s)
            pool.runtime.live.pop(attempt.launch.job.id)
            return End(unstarted=True)

        async def call_slowly(name: str) -> None:
            await asyncio.sleep(0.002)
            await called(name)

        pool.runtime.wait = wait_or_come_late  # type: ignore[method-assign]
        pool.prefect._called = call_slowly  # type: ignore[method-assign]
        run = pool.submit("a", tags=("mine",))
        await pool.sync.sync_all()
        await pool.until(lambda: len(pool.runtime.launched) == 2, "it is launched again")
        await pool.until(lambda: pool.prefect.runs[run.id].state_name == "Running", "that is reported")
        names = pool.prefect.state_names(run.id)
        assert names.count("Pending") == 2
        assert "AwaitingGPU" in names
        assert pool.running() == {"a"}

    check()


@in_event_loop
async def test_nothing_of_the_late_launch_is_left_on_the_run(tmp_path: Path) -> None:
    pool = Pool(tmp_path)

    async def come_late(attempt: Attempt) -> End:
        await pool.until(lambda: pool.prefect.runs[run.id].state_name == "Running", "the launch is reported")
        assert pool.prefect.runs[run.id].infrastructure_pid
        pool.dispatcher.active = False  # nothing is launched again
        pool.runtime.live.pop(attempt.launch.job.id)
        return End(unstarted=True)

    pool.runtime.wait = come_late  # type: ignore[method-assign]
    run = pool.submit("a", tags=("mine",))
    await pool.sync.sync_all()
    await pool.until(lambda: pool.prefect.state_names(run.id)[-1] == "AwaitingGPU", "it waits again")
    waiting = pool.prefect.runs[run.id]
    assert waiting.infrastructure_pid is None
    assert waiting.tags == ["mine"]

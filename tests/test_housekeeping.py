"""The status is published when something changes, so that a run that has ended holds no device there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from unittest import mock

from fake_pool import FakePool, happens, in_event_loop

from gpu_flows.dispatch import execution_runner
from gpu_flows.worker import housekeeping
from gpu_flows.worker.housekeeping import after_changes, keep_tidy


@in_event_loop
async def test_devices_are_shown_as_free_before_the_end_of_the_run_is_reported(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    shown: list[tuple[set[str], str]] = []

    async def publish() -> None:
        async for _ in after_changes(pool.dispatcher.changed):
            shown.append((set(pool.engine.running), pool.gateway.states["a"]))

    with (
        mock.patch.object(housekeeping, "PUBLISH_EVERY_S", 60.0),
        mock.patch.object(housekeeping, "SHORTEST_PAUSE_S", 0.0),
        mock.patch.object(execution_runner, "REPORT_DELAY_S", 0.05),
    ):
        pool.submit("a")
        publisher = asyncio.create_task(publish())
        await pool.wait_for_running("a")
        await pool.wait_for(lambda: ({"a"}, "claimed") in shown, "the running job is shown")
        pool.runtime.exit("a", 0)
        await pool.wait_for(lambda: pool.job_ends(), "its end is reported")
        publisher.cancel()
    assert (set(), "claimed") in shown, "free while the run is not yet Completed"


@in_event_loop
async def test_the_status_is_also_published_without_changes_but_not_all_the_time() -> None:
    published = 0

    async def publish() -> None:
        nonlocal published
        async for _ in after_changes(changed):
            published += 1
            changed.set()
            await asyncio.sleep(0.005)

    changed = asyncio.Event()
    with mock.patch.object(housekeeping, "PUBLISH_EVERY_S", 0.05):
        publisher, began = asyncio.create_task(publish()), time.monotonic()
        assert await happens(lambda: published >= 5), "nothing changed before the first time"
        publisher.cancel()
    assert time.monotonic() - began > 4 * 0.05


@in_event_loop
async def test_old_files_are_removed_as_soon_as_the_worker_may_act_and_then_again() -> None:
    """A worker may not act when it starts, and may not run for an hour."""
    leads, jobs, attempts = False, mock.Mock(), mock.Mock()
    with (
        mock.patch.object(housekeeping, "ASK_AGAIN_S", 0.001),
        mock.patch.object(housekeeping, "TIDY_EVERY_S", 0.001),
    ):
        tidying = asyncio.create_task(keep_tidy(jobs, attempts, lambda: leads))
        await asyncio.sleep(0.02)
        assert not jobs.retire_old.called, "another worker leads the pool"
        leads = True
        assert await happens(lambda: attempts.remove_old.call_count >= 2)
        assert jobs.remove_retired.call_count >= 2
        tidying.cancel()

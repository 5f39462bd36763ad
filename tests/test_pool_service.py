"""How a pool's service begins and stops to lead."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from fake_pool import happens
from fake_prefect import FakePrefect

from gpu_flows.common.retry import Backoff
from gpu_flows.prefect_api.server_retry import retry_until_answered
from gpu_flows.worker import background_tasks, folder_lock, pool_service
from gpu_flows.worker.folder_lock import FolderLock
from gpu_flows.worker.pool_service import PoolService
from gpu_flows.worker.status import read_status, stands_by

log = logging.getLogger("test_pool_service")


class ScriptedLease:
    """The test grants the lease by its token, and ends it."""

    def __init__(self) -> None:
        self.token, self.valid = "", False
        self.granted: asyncio.Queue[str] = asyncio.Queue()
        self.lost = asyncio.Event()
        self.is_renewing = False
        self.released = False

    def is_valid(self) -> bool:
        return self.valid

    def ends_at(self) -> float:
        return 0.0

    async def acquire(self) -> None:
        self.token = await self.granted.get()
        self.valid = True

    async def renew_until_lost(self) -> None:
        self.is_renewing = True
        await self.lost.wait()
        self.lost.clear()
        self.valid = self.is_renewing = False

    async def release(self) -> None:
        self.released = True


class Service:
    """A service on a fake server. It has nothing to prepare, and the test can hold up its takeover."""

    def __init__(self) -> None:
        self.prefect, self.lease = FakePrefect(), ScriptedLease()
        self.takeovers: list[str] = []
        self.watched = 0  # how often it looked at the runs of its own folder
        self.gate = asyncio.Event()
        self.gate.set()
        with mock.patch.object(pool_service, "PoolLease", return_value=self.lease):
            self.service = PoolService(
                self.prefect.client, self.prefect.pool, set(), lambda: ("w", None), log
            )
        self.dispatcher = self.service.dispatcher
        patched: Any = self.service
        patched._prepare, patched._take_over = self._prepare, self._take_over
        patched._poll_soon = lambda: None
        patched._other_runs.watch_own = self._watch_own

    async def _prepare(self) -> None:
        self.service._is_prepared = True

    async def _watch_own(self) -> None:
        self.watched += 1

    async def _take_over(self) -> None:
        self.takeovers.append(self.lease.token)
        await self.gate.wait()

    async def until(self, condition: Callable[[], object]) -> None:
        assert await happens(condition)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPU_FLOWS_HOME", str(tmp_path))
    monkeypatch.setattr(background_tasks, "RESTART_AFTER_S", 0.01)
    return tmp_path


def serve(test: Callable[[Service], Any]) -> None:
    async def main() -> None:
        service = Service()
        service.service.start()
        try:
            await test(service)
        finally:
            await service.service.close()
        assert service.lease.released

    asyncio.run(main())


def test_it_leads_with_the_lease_only() -> None:
    async def test(service: Service) -> None:
        await asyncio.sleep(0.02)
        assert not service.dispatcher.active
        service.lease.granted.put_nowait("1")
        await service.until(lambda: service.dispatcher.active)
        service.lease.valid = False  # by the clock, before anything was told
        assert not service.dispatcher.active
        service.lease.valid = True
        service.lease.lost.set()
        await service.until(lambda: not service.lease.is_renewing)
        assert not service.dispatcher.active

    serve(test)


def test_only_another_lease_needs_a_takeover() -> None:
    async def test(service: Service) -> None:
        for token in ("1", "1", "2"):
            service.lease.granted.put_nowait(token)
            await service.until(lambda: service.dispatcher.active)
            service.lease.lost.set()
            await service.until(lambda: not service.dispatcher.active)
        assert service.takeovers == ["1", "2"]

    serve(test)


def test_the_lease_is_renewed_during_a_long_takeover() -> None:
    async def test(service: Service) -> None:
        service.gate.clear()
        service.lease.granted.put_nowait("1")
        await service.until(lambda: service.lease.is_renewing and service.takeovers)
        assert not service.dispatcher.active
        service.gate.set()
        await service.until(lambda: service.dispatcher.active)

    serve(test)


def test_a_lease_lost_during_the_takeover_is_not_served() -> None:
    async def test(service: Service) -> None:
        service.gate.clear()
        service.lease.granted.put_nowait("1")
        await service.until(lambda: service.takeovers == ["1"])
        service.lease.lost.set()
        await service.until(lambda: not service.lease.is_renewing)
        service.gate.set()
        await asyncio.sleep(0.02)
        service.gate.clear()
        service.lease.granted.put_nowait("2")
        await service.until(lambda: service.takeovers == ["1", "2"])
        assert not service.dispatcher.active
        service.gate.set()
        await service.until(lambda: service.dispatcher.active)
        assert service.takeovers == ["1", "2"], "what the other worker did meanwhile has to be found"

    serve(test)


def test_a_worker_that_closes_during_the_takeover_does_not_begin() -> None:
    services = []

    async def test(service: Service) -> None:
        services.append(service)
        service.gate.clear()
        service.lease.granted.put_nowait("1")
        await service.until(lambda: service.takeovers)
        asyncio.get_running_loop().call_soon(service.gate.set)

    serve(test)
    assert not services[0].dispatcher.active


def test_two_workers_in_one_folder_do_not_judge_each_others_runs() -> None:
    async def test(service: Service) -> None:
        await service.until(lambda: service.service._is_prepared)
        await service.service.poll()
        assert service.watched == 1, "it stands by, and the folder is its own"
        second = Service()
        second.service.start()
        await asyncio.sleep(0.05)
        await second.service.poll()
        assert not second.watched, "the claims of this folder are those of the first worker"
        await second.service.close()

    serve(test)


def test_a_failure_that_nobody_foresaw_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    async def test(service: Service) -> None:
        real, failures = service.lease.acquire, [RuntimeError("unforeseen"), OSError(28, "disk full")]

        async def acquire() -> None:
            if failures:
                raise failures.pop(0)
            await real()

        service.lease.acquire = acquire  # type: ignore[method-assign]
        service.lease.granted.put_nowait("1")
        service.lease.lost.set()
        service.lease.granted.put_nowait("2")
        await service.until(lambda: service.dispatcher.active)
        assert not failures
        assert "Serving the pool failed; starting it again." in caplog.text

    serve(test)


def test_the_status_shows_whether_it_leads(home: Path) -> None:
    async def test(service: Service) -> None:
        await service.service._publishing.publish()
        assert stands_by("pool")
        assert read_status("pool") is None, "another worker knows the queue"
        service.lease.granted.put_nowait("1")
        await service.until(lambda: read_status("pool"))
        assert not stands_by("pool")
        assert json.loads((home / "pools" / "pool" / "status.json").read_text())["leads"]
        await service.service.close()
        assert read_status("pool") is None, "a worker that has stopped serves nobody"

    serve(test)


def test_one_live_worker_uses_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "RETRY_S", 0.01)

    async def main() -> None:
        first, second = FolderLock(tmp_path, log), FolderLock(tmp_path, log)
        await first.acquire()
        await first.acquire()
        waiting = asyncio.ensure_future(second.acquire())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        first.release()
        await asyncio.wait_for(waiting, 60)

    asyncio.run(main())


def test_a_folder_that_cannot_be_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder_lock, "RETRY_S", 0.01)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        lock = FolderLock(tmp_path / "missing", log)
        waiting = asyncio.ensure_future(lock.acquire())
        await asyncio.sleep(0.05)
        assert caplog.text.count("cannot be opened") == 1
        (tmp_path / "missing").mkdir()
        await asyncio.wait_for(waiting, 60)
        lock.release()

    asyncio.run(main())


def test_a_failure_to_begin_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(service: Service) -> None:
        failing = mock.AsyncMock(side_effect=OSError(28, "disk full"))
        with mock.patch.object(service.service._publishing, "publish", failing):
            service.lease.granted.put_nowait("1")
            await service.until(lambda: "disk full" in caplog.text)

    serve(test)


def test_missed_ends_are_recorded_when_the_server_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_until_answered, "__defaults__", (Backoff(first_s=0.01),))
    record = mock.AsyncMock(side_effect=[httpx.ConnectError("away"), None])

    async def test(service: Service) -> None:
        with mock.patch.object(service.service, "_record_missed_ends", record):
            service.lease.granted.put_nowait("1")
            await service.until(lambda: record.await_count == 2)

    serve(test)

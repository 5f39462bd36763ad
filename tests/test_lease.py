"""The lease on a pool: never two holders, whatever the network does, and always one again later."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_limits import FakeLimits, Network
from virtual_time import now, run_in_virtual_time

from gpu_flows.worker import lease as lease_module
from gpu_flows.worker.lease import RENEW_S, TAKEOVER_S, VALID_S, PoolLease

log = logging.getLogger("test_lease")


class Worker:
    """Holds the lease as often as it can."""

    def __init__(self, server: FakeLimits, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.network = Network(server)
        self.folder = folder
        self.frozen_until = 0.0
        self.lease = PoolLease(self.network.client, "gpu", folder, log, now, now)
        self.tokens: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Worker:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def _run(self) -> None:
        while True:
            await self.lease.acquire()
            self.tokens.append(self.lease.token)
            await self.lease.renew_until_lost()

    def kill(self) -> None:
        assert self._task
        self._task.cancel()

    async def stop(self) -> None:
        self.kill()
        await self.lease.release()


async def leader(workers: list[Worker], within_s: float) -> Worker:
    """Wait until one of them leads."""
    deadline = now() + within_s
    while now() < deadline:
        await asyncio.sleep(0.5)
        leaders = [worker for worker in workers if worker.lease.is_valid()]
        assert len(leaders) <= 1, "two workers lead at once"
        if leaders:
            return leaders[0]
    raise AssertionError(f"nobody leads after {within_s} s")


async def watch(workers: list[Worker], for_s: float) -> dict[Worker, float]:
    """Check all the time that at most one leads. Returns for how long each one led."""
    led = dict.fromkeys(workers, 0.0)
    for _ in range(int(for_s / 0.25)):
        await asyncio.sleep(0.25)
        leaders = [worker for worker in workers if worker.lease.is_valid()]
        assert len(leaders) <= 1, "two workers lead at once"
        for worker in leaders:
            led[worker] += 0.25
    return led


Test = Callable[[FakeLimits, list[Worker]], Awaitable[None]]


@pytest.fixture
def with_workers(tmp_path: Path) -> Callable[[int, Test], None]:
    """Run a test with this many workers, each in a folder of its own."""

    def run(count: int, test: Test) -> None:
        async def work() -> None:
            server = FakeLimits()
            await test(server, [Worker(server, tmp_path / str(i)) for i in range(count)])

        run_in_virtual_time(work())

    return run


def test_the_first_worker_leads_at_once_and_stays(with_workers: Callable[[int, Test], None]) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        first = await leader([workers[0].start()], within_s=1)
        workers[1].start()
        led = await watch(workers, 600)
        assert led[first] == 600
        assert len(first.tokens) == 1

    with_workers(2, test)


def test_another_worker_takes_over_from_a_dead_one(with_workers: Callable[[int, Test], None]) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        await leader([workers[0].start()], within_s=1)
        workers[1].start()
        await asyncio.sleep(20)
        workers[0].kill()
        killed = now()
        while not workers[1].lease.is_valid():
            await watch(workers, 0.5)
        assert TAKEOVER_S - RENEW_S < now() - killed < TAKEOVER_S + 10
        assert workers[1].lease.token > workers[0].lease.token
        await asyncio.sleep(30)
        assert len(server.limits) == 1, "earlier leases are removed"

    with_workers(2, test)


def test_a_lease_that_was_given_up_is_free_at_once(with_workers: Callable[[int, Test], None]) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        await leader([workers[0].start()], within_s=1)
        workers[1].start()
        await asyncio.sleep(12)
        await workers[0].stop()
        assert await leader(workers, within_s=7) is workers[1]

    with_workers(2, test)


def test_a_worker_restarted_in_the_same_folder_does_not_wait(
    with_workers: Callable[[int, Test], None],
) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        await leader([workers[0].start()], within_s=1)
        await asyncio.sleep(12)
        workers[0].kill()
        successor = Worker(server, workers[0].folder).start()
        assert await leader([successor], within_s=1)
        assert successor.lease.token > workers[0].lease.token, "what the dead worker claimed is told apart"

    with_workers(1, test)


def test_with_slow_answers_it_stops_in_time_and_the_other_takes_over(
    with_workers: Callable[[int, Test], None],
) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        slow, quick = workers
        await leader([slow.start()], within_s=1)
        quick.start()
        await asyncio.sleep(20)
        slow.network.delay = lambda: 30.0
        began = now()
        while slow.lease.is_valid():
            await watch(workers, 0.5)
        assert now() - began <= VALID_S + 0.5
        assert await leader(workers, within_s=TAKEOVER_S) is quick
        led = await watch(workers, 600)
        assert led[quick] == 600

    with_workers(2, test)


def test_it_returns_at_the_deadline_while_an_answer_is_missing(
    with_workers: Callable[[int, Test], None],
) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        (worker,) = workers
        await worker.lease.acquire()
        began = now()
        worker.network.delay = lambda: 1000.0
        await worker.lease.renew_until_lost()
        assert now() - began <= VALID_S + 0.1
        assert not worker.lease.is_valid()

    with_workers(1, test)


def test_a_lease_counts_from_the_moment_at_which_the_request_was_sent(
    with_workers: Callable[[int, Test], None],
) -> None:
    """Its renewal arrives at once, and the answer so late that the other worker is about to take over."""

    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        slow, quick = workers
        await leader([slow.start()], within_s=1)
        quick.start()
        slow.network.delay = lambda: 1000.0  # its renewals do not arrive
        await asyncio.sleep(slow.lease.ends_at() - now() - 0.1)
        slow.network.delay, slow.network.calls = (lambda: 0.01), []
        for _ in range(300):
            await asyncio.sleep(0.001)
            if slow.network.calls == ["read_all", "increment"]:  # it tries to regain the lease
                break
        else:
            raise AssertionError(slow.network.calls)
        slow.network.answer_delay = lambda: 50.0
        await asyncio.sleep(0.1)
        slow.network.delay = lambda: 1000.0
        await watch(workers, TAKEOVER_S + 20)
        assert quick.lease.is_valid()

    with_workers(2, test)


def test_a_lease_in_doubt_that_nobody_took_is_the_same_lease(
    with_workers: Callable[[int, Test], None],
) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        (worker,) = workers
        await leader([worker.start()], within_s=1)
        worker.network.delay = lambda: 100.0
        await asyncio.sleep(VALID_S + RENEW_S)
        assert not worker.lease.is_valid()
        worker.network.delay = lambda: 0.01
        await leader([worker], within_s=250)
        assert len(worker.tokens) > 1
        assert len(set(worker.tokens)) == 1, "nothing has to be recovered"

    with_workers(1, test)


def test_a_single_worker_with_a_slow_server_still_serves(with_workers: Callable[[int, Test], None]) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        workers[0].start().network.delay = lambda: 10.0
        led = await watch(workers, 1000)
        assert led[workers[0]] > 850

    with_workers(1, test)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_an_error_is_no_loss(with_workers: Callable[[int, Test], None], status: int) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        await leader([workers[0].start()], within_s=1)
        workers[0].network.refused = [status] * 5
        led = await watch(workers, 120)
        assert led[workers[0]] == 120

    with_workers(1, test)


def test_a_lost_answer_to_the_creation_costs_nothing(with_workers: Callable[[int, Test], None]) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        (worker,) = workers
        worker.start().network.lost = 1.0
        await asyncio.sleep(0.1)
        worker.network.lost = 0.0
        assert await leader([worker], within_s=12) is worker

    with_workers(1, test)


def test_a_full_disk_is_logged_and_waited_for(
    with_workers: Callable[[int, Test], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "write_atomically", full)
            workers[0].start()
            await asyncio.sleep(60)
            assert not workers[0].lease.is_valid()
            assert [record.message for record in caplog.records if "No space left" in record.message]
        assert await leader(workers, within_s=10)

    with_workers(1, test)


def test_a_limit_that_was_deactivated_in_the_ui_is_never_taken_over(
    with_workers: Callable[[int, Test], None],
) -> None:
    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        await leader([workers[0].start()], within_s=1)
        for limit in server.limits.values():
            limit.active = False
        workers[1].start()
        led = await watch(workers, 300)
        assert led[workers[0]] == 300

    with_workers(2, test)


def test_a_late_creation_of_a_deleted_lease_is_not_valid(with_workers: Callable[[int, Test], None]) -> None:
    """The request of one worker is on its way for so long that its number was used, ended and deleted."""

    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        late, *others = workers
        await leader([others[0].start()], within_s=1)
        first = server.limits.copy()
        await others[0].stop()
        late.start()
        await asyncio.sleep(0.015)  # it has seen that the lease is over, and sends the creation of the next
        late.network.delay = lambda: 40.0
        await asyncio.sleep(0.01)
        assert late.network.calls == ["read_all", "create"]
        late.network.delay = lambda: 0.01
        await leader([others[1].start()], within_s=10)
        await others[1].stop()
        await leader([others[2].start()], within_s=10)
        await watch(workers, 120)
        assert others[2].lease.is_valid()
        assert not set(first) & set(server.limits)
        assert not late.tokens

    with_workers(4, test)


@contextmanager
def _seeded(seed: int) -> Iterator[random.Random]:
    random.seed(seed)
    yield random.Random(seed)


@pytest.mark.parametrize("seed", range(6))
def test_never_two_leaders_on_a_bad_network(with_workers: Callable[[int, Test], None], seed: int) -> None:
    """Four workers for two hours: delays of up to 90 s, lost answers, kills and restarts."""

    async def test(server: FakeLimits, workers: list[Worker]) -> None:
        with _seeded(seed) as dice:
            alive = [worker.start() for worker in workers]
            every = list(workers)
            for _ in range(120):
                for worker in alive:
                    slowness = dice.choice([0.01, 0.01, 5.0, 45.0])
                    worker.network.delay = lambda slowness=slowness: random.uniform(0, slowness)  # type: ignore[misc]
                    worker.network.lost = dice.choice([0.0, 0.0, 0.2, 0.9])
                if dice.random() < 0.2:
                    victim = alive.pop(dice.randrange(len(alive)))
                    victim.kill()
                    victim.lease._valid_until = 0.0  # a dead worker does not act
                    alive.append(Worker(server, victim.folder).start())
                    every.append(alive[-1])
                await watch(every, 60)
            for worker in alive:
                worker.network.delay, worker.network.lost = (lambda: 0.01), 0.0
            await asyncio.sleep(200)  # until what is on its way has arrived
            assert await leader(every, within_s=3 * TAKEOVER_S)

    with_workers(4, test)

"""The lease on a real server: what the fake limits of `test_lease` assume of its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.orchestration import PrefectClient

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.worker.lease import TAKEOVER_S, PoolLease

pytestmark = pytest.mark.slow


def test_a_lease_is_ended_once_and_never_renewed_again(server: Stack, tmp_path: Path) -> None:
    clock = [0.0]

    async def main() -> None:
        async with PrefectClient(server.api_url) as client:
            make = _maker(client, tmp_path, lambda: clock[0])
            first, second = make("first"), make("second")
            assert await first._try_to_acquire()
            assert not await second._try_to_acquire()
            assert await first._renew()
            clock[0] += TAKEOVER_S
            assert not first.is_valid()
            assert not await second._try_to_acquire(), "it has not seen the renewal before"
            clock[0] += TAKEOVER_S
            assert await second._try_to_acquire()
            assert int(second.token) == int(first.token) + 1
            assert not await first._renew()
            await second._delete_older()
            assert not await first._renew()
            await second.release()
            assert await first._try_to_acquire(), "it was given up"
            assert await make("first")._try_to_acquire(), "the next worker in this folder does not wait"

    asyncio.run(main())


def test_of_many_workers_one_gets_the_lease(server: Stack, tmp_path: Path) -> None:
    async def main() -> None:
        async with PrefectClient(server.api_url) as client:
            make = _maker(client, tmp_path, lambda: 0.0)
            leases = [make(str(number)) for number in range(8)]
            for _ in range(3):
                await asyncio.gather(*(lease._try_to_acquire() for lease in leases))
                (leader,) = [lease for lease in leases if lease.is_valid()]
                await leader.release()

    asyncio.run(main())


def _maker(client: PrefectClient, folder: Path, clock: Callable[[], float]) -> Callable[[str], PoolLease]:
    pool = f"lease-{folder.name}"

    def make(name: str) -> PoolLease:
        (folder / name).mkdir(exist_ok=True)
        return PoolLease(client, pool, folder / name, logging.getLogger(__name__), clock)

    return make

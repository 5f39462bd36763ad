"""When the artifacts of a pool are written: soon after what they show has changed, but seldom.

A change is written at once if the last one is some seconds ago. What changes all the time, such as how long a
job has waited, is brought up to date once a minute. Nothing is written while nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from pathlib import Path

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import PrefectException

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.prefect_api.pool_artifacts import TableArtifacts
from gpu_flows.worker.pool_tables import Table, key_of, make_comparison_table, make_tables
from gpu_flows.worker.status import Status

LOOK_EVERY_S = 1.0
REFRESH_S = 10.0  # between two writings of a table
REFRESH_MOVING_S = 60.0  # between two of a table in which only the moving columns change
COMPARE_S, PAUSE_FACTOR = 60.0, 20.0  # between two comparisons of the policies; longer if one takes long
RECORDED_AFTER_S = 5.0  # facts reach the warehouse a few seconds after they happened


class Pacer:
    """Chooses the tables that are due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: dict[str, tuple[float, Table | None]] = {}  # by kind: when, and what if it succeeded

    def forget(self) -> None:
        self._written.clear()

    def find_due(self, tables: list[Table]) -> Iterator[Table]:
        """Yield the tables that have to be written now."""
        now = self._clock()
        for table in tables:
            at, before = self._written.get(table.kind, (float("-inf"), None))
            is_urgent = before is None or table.settled != before.settled
            if table != before and now - at >= (REFRESH_S if is_urgent else REFRESH_MOVING_S):
                yield table

    def note(self, table: Table, is_written: bool) -> None:
        """Note that the table was written, or that this was tried in vain."""
        self._written[table.kind] = self._clock(), table if is_written else None


class ArtifactRefresh:
    """`find_database` returns the warehouse, if there is one yet. Only a worker that is leading writes."""

    def __init__(
        self,
        client: PrefectClient,
        find_database: Callable[[], Path | None],
        log: logging.Logger,
        is_leading: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_leading = is_leading
        self._artifacts, self._find_database, self._log = TableArtifacts(client), find_database, log
        self._pacer = Pacer()
        self._status: Status | None = None
        self._next_comparison = float("-inf")
        self._compared: Hashable = None  # what the policies were compared after

    def show(self, status: Status) -> None:
        """Show this status from now on."""
        self._status = status

    async def keep_writing(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_repeat(self.write_round))
            tasks.create_task(_repeat(self.compare))

    async def write_round(self) -> None:
        """Write the tables that are due. A server that refuses or does not answer is asked again later."""
        status = self._status
        if status is None or not status.leads:
            self._artifacts.forget()
            self._pacer.forget()
            self._compared = None
            return
        for table in await asyncio.to_thread(self._find_due, status):  # with a long queue it takes a while
            self._pacer.note(table, await self._write(status.pool, table))

    def _find_due(self, status: Status) -> list[Table]:
        return list(self._pacer.find_due(make_tables(status)))

    async def compare(self) -> None:
        """Compare the policies again when one was swapped, or when a job has ended."""
        status, database = self._status, self._find_database()
        if not status or not status.leads or not database:
            return
        running = frozenset(job["id"] for job in status.running)
        moment: Hashable = (status.policy["name"], status.policy["saved"], running)
        if moment == self._compared or time.monotonic() < self._next_comparison:
            return
        await asyncio.sleep(RECORDED_AFTER_S)
        began = time.monotonic()
        with contextlib.suppress(QueryError):  # the warehouse is busy
            found = await asyncio.to_thread(run_query, database, "policies", {"pool": status.pool})
            if await self._write(status.pool, make_comparison_table(status.pool, found)):
                self._compared = moment
        took = time.monotonic() - began
        self._next_comparison = began + max(COMPARE_S, PAUSE_FACTOR * took)

    async def _write(self, pool: str, table: Table) -> bool:
        if not self._is_leading():  # the lease was lost after this status
            return False
        try:
            await self._artifacts.write(key_of(table.kind, pool), table.description, table.rows)
        except (httpx.HTTPError, PrefectException) as error:
            self._log.debug("The artifact with the %s was not written: %s", table.kind, error)
            return False
        return True


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await work()

"""The lease on a pool: one worker acts for the pool at a time; others stand by and take over.

Each lease is a global concurrency limit on the server, with a number in its name, and each renewal adds one
to its active slots. The server adds only if the sum is not above the limit, in one statement of its database.
So a worker that has seen N renewals can end the lease by adding (limit - N): this succeeds only if there was
no further renewal, and afterwards every renewal fails. Then the worker that creates the limit with the next
number has the next lease; names are unique, so only one worker can. Nothing of this depends on the server's
memory or clock, and a restarted server changes nothing.

A worker may act for `VALID_S` after it *sent* its last successful renewal, and no longer, whenever the answer
arrived. A worker that stands by ends a lease when it has seen no renewal for `TAKEOVER_S`, counted from the
*arrival* of the answer that showed the last one. So the old holder has stopped before, by the difference of
the two times. A worker that is restarted in the same folder does not wait: it has the lock of the folder, so
the worker of which the folder names the lease is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException

from gpu_flows.common.files import write_atomically

VALID_S = 45.0
TAKEOVER_S = 60.0
RENEW_S = 10.0
WATCH_S = 5.0  # between two looks of a worker that stands by
RELEASE_TIMEOUT_S = 5.0
_PAGE = 200

Clock = Callable[[], float]


def elapsed() -> float:
    """A clock that nobody can set, and that also counts the time in which the machine was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lease as the server showed it."""

    number: int
    limit: int  # a random number that its holder chose: it shows whose lease this is
    renewals: int

    @property
    def is_over(self) -> bool:
        return self.renewals >= self.limit


class PoolLease:
    """Implements `gpu_flows.dispatch.lease.Lease`."""

    def __init__(
        self,
        client: PrefectClient,
        pool: str,
        folder: Path,
        log: logging.Logger,
        clock: Clock = elapsed,
        wall_clock: Clock = time.time,
    ) -> None:
        self._client, self._pool, self._log = client, pool, log
        self._clock, self._wall_clock = clock, wall_clock
        self._prefix = f"gpu-flows-lease-{pool}-"
        self._file = folder / "lease"  # number and limit of the lease that this folder's worker wanted last
        self._limit = 2**30 + secrets.randbelow(2**30)
        self._number: int | None = None  # of this worker's lease
        self._valid_until = self._ends_at = 0.0
        self._took_s = 0.0  # how long the last renewal took
        self._last: tuple[_Seen, float] | None = None  # the lease of another worker, and since when it is so
        self._older: list[int] = []  # the numbers of earlier leases, which the holder deletes
        self._trouble = ""

    # -- the lease, for everything that acts --------------------------------------------------

    @property
    def token(self) -> str:
        return str(self._number or "")

    def is_valid(self) -> bool:
        return self._clock() < self._valid_until and self._wall_clock() < self._ends_at

    def ends_at(self) -> float:
        return self._ends_at

    # -- acquire, renew, release --------------------------------------------------------------

    async def acquire(self) -> None:
        """Wait until this worker has the lease."""
        stands_by = False
        while not await self._try_to_acquire():
            if not stands_by and not self._trouble:
                self._log.info("Another worker acts for pool %r; standing by to take over.", self._pool)
                stands_by = True
            await asyncio.sleep(WATCH_S)
        if stands_by:
            self._log.info("Taking over pool %r.", self._pool)

    async def renew_until_lost(self) -> None:
        """Renew the lease regularly. Returns as soon as it is not valid any more, or is another worker's."""
        while self.is_valid():
            # With a slow server the next renewal is sent earlier, so that its answer arrives in time.
            await asyncio.sleep(max(0.0, min(RENEW_S, self._remaining() - 2 * self._took_s)))
            try:
                async with asyncio.timeout(self._remaining()):
                    if not await self._renew():
                        self._valid_until = 0.0
                        return
                    await self._delete_older()
            except TimeoutError:
                return
            except (httpx.HTTPError, PrefectException) as error:
                self._warn(error)
                await asyncio.sleep(min(1.0, self._remaining()))

    async def release(self) -> None:
        """Give up the lease, so that another worker need not wait."""
        self._valid_until = 0.0
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                seen = await self._read(self._number) if self._number is not None else None
                if seen and seen.limit == self._limit and not seen.is_over:
                    await self._add(seen.number, seen.limit - seen.renewals)
            self._file.unlink(missing_ok=True)
        except (httpx.HTTPError, PrefectException, OSError, TimeoutError):
            pass  # it ends by itself

    def _remaining(self) -> float:
        return max(0.0, self._valid_until - self._clock())

    async def _try_to_acquire(self) -> bool:
        try:
            acquired = await self._acquire_once()
        except (httpx.HTTPError, PrefectException, OSError) as error:
            self._warn(error)
            return False
        self._trouble = ""
        return acquired

    async def _acquire_once(self) -> bool:
        found = await self._find_all()
        seen = found[-1] if found else None
        if seen and not seen.is_over:
            if seen.limit == self._limit:
                # Nobody has ended it while it was in doubt. Or the answer to its creation was lost.
                self._number = seen.number
                return await self._renew()
            if not self._may_end(seen) or not await self._end(seen):
                return False
        # The first number is the time, so that numbers grow even if someone deletes the limit.
        return await self._create(seen.number + 1 if seen else int(self._wall_clock()))

    async def _renew(self) -> bool:
        assert self._number is not None
        sent = self._clock(), self._wall_clock()
        renewed = await self._add(self._number, 1)
        self._took_s = self._clock() - sent[0]
        return renewed and self._hold(*sent)

    async def _create(self, number: int) -> bool:
        # Written first: if this worker is killed now, the next one in this folder knows whose lease it is.
        write_atomically(self._file, f"{number} {self._limit}")
        sent = self._clock(), self._wall_clock()
        limit = GlobalConcurrencyLimitCreate(name=f"{self._prefix}{number}", limit=self._limit)
        try:
            await self._client.create_global_concurrency_limit(limit)
        except ObjectAlreadyExists:
            pass  # by another worker, or by a request of ours whose answer was lost
        # A request that was long on its way may create a lease whose number was used and deleted before. The
        # highest number is never deleted, so it shows that.
        found = await self._find_all()
        if not found or found[-1].is_over or (found[-1].number, found[-1].limit) != (number, self._limit):
            return False
        self._number = number
        return self._hold(*sent)

    def _hold(self, sent: float, wall_sent: float) -> bool:
        """Count the lease as valid since the request was sent. Returns False if the answer took too long."""
        self._valid_until, self._ends_at = sent + VALID_S, wall_sent + VALID_S
        return self.is_valid()

    # -- the lease of another worker ----------------------------------------------------------

    def _may_end(self, seen: _Seen) -> bool:
        """Whether the holder is dead, or has stopped because it did not renew its lease."""
        if self._is_of_this_folder(seen):
            return True
        if self._last is None or self._last[0] != seen:
            self._last = (seen, self._clock())
        return self._clock() - self._last[1] >= TAKEOVER_S

    def _is_of_this_folder(self, seen: _Seen) -> bool:
        try:
            return self._file.read_text() == f"{seen.number} {seen.limit}"
        except OSError:
            return False

    async def _end(self, seen: _Seen) -> bool:
        """End the lease, unless it was renewed meanwhile."""
        self._log.warning("The worker with the lease on pool %r does not renew it; taking over.", self._pool)
        if not await self._add(seen.number, seen.limit - seen.renewals):
            return False
        # Read again: for a limit that someone deactivated in the UI, the server adds nothing and says yes.
        ended = await self._read(seen.number)
        return ended is None or ended.is_over

    # -- requests -----------------------------------------------------------------------------

    async def _find_all(self) -> list[_Seen]:
        """Return the pool's leases by number. All but the last are over."""
        found: list[_Seen] = []
        for offset in itertools.count(0, _PAGE):
            page = await self._client.read_global_concurrency_limits(_PAGE, offset)
            found += [seen for limit in page if (seen := self._parse(limit))]
            if len(page) < _PAGE:
                break
        found.sort(key=lambda seen: seen.number)
        self._older = [seen.number for seen in found[:-1]]
        return found

    async def _read(self, number: int) -> _Seen | None:
        try:
            return self._parse(
                await self._client.read_global_concurrency_limit_by_name(f"{self._prefix}{number}")
            )
        except ObjectNotFound:
            return None

    def _parse(self, limit: GlobalConcurrencyLimitResponse) -> _Seen | None:
        number = limit.name.removeprefix(self._prefix)
        if number == limit.name or not number.isdigit():
            return None
        return _Seen(int(number), limit.limit, limit.active_slots)

    async def _add(self, number: int, renewals: int) -> bool:
        """Add to the renewals. Returns False if the lease is over or was renewed too often for that."""
        try:
            answer = await self._client.increment_concurrency_slots(
                [f"{self._prefix}{number}"], renewals, "concurrency"
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 423:
                return False
            raise
        return bool(answer.json())  # empty if there is no such limit

    async def _delete_older(self) -> None:
        while self._older:
            with contextlib.suppress(ObjectNotFound):
                await self._client.delete_global_concurrency_limit_by_name(f"{self._prefix}{self._older[0]}")
            self._older.pop(0)

    def _warn(self, error: Exception) -> None:
        """Log the same trouble once."""
        text = str(error) or type(error).__name__
        if text != self._trouble:
            self._log.warning(
                "Cannot renew or acquire the lease on pool %r (%s); trying again.", self._pool, text
            )
        self._trouble = text

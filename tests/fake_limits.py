"""Global concurrency limits of a Prefect server in memory, and clients that reach it over bad networks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound


class FakeLimits:
    """The server's side: each request takes effect in one step, as one statement of its database does."""

    def __init__(self) -> None:
        self.limits: dict[str, SimpleNamespace] = {}

    def create(self, name: str, limit: int) -> None:
        if name in self.limits:
            raise ObjectAlreadyExists(http_exc=_error(409))
        self.limits[name] = SimpleNamespace(name=name, limit=limit, active_slots=0, active=True)

    def increment(self, name: str, slots: int) -> list[dict[str, Any]]:
        found = self.limits.get(name)
        if found is None:
            return []
        if found.active:
            if found.active_slots + slots > found.limit:
                raise _error(423)
            found.active_slots += slots
        return [{"name": name}]

    def read_all(self, limit: int, offset: int) -> list[SimpleNamespace]:
        names = sorted(self.limits)[offset : offset + limit]
        return [SimpleNamespace(**vars(self.limits[name])) for name in names]

    def read(self, name: str) -> SimpleNamespace:
        if name not in self.limits:
            raise ObjectNotFound(http_exc=_error(404))
        return SimpleNamespace(**vars(self.limits[name]))

    def delete(self, name: str) -> None:
        self.read(name)
        del self.limits[name]


class Network:
    """A worker's way to the server. The test sets how it behaves; a request that the worker gave up on still
    arrives."""

    def __init__(self, server: FakeLimits) -> None:
        self.server = server
        self.delay: Callable[[], float] = lambda: 0.01  # of a request
        self.answer_delay: Callable[[], float] | None = None  # of an answer; None: as of a request
        self.lost = 0.0  # the share of answers that are lost
        self.refused: list[int] = []  # statuses for the next requests
        self.calls: list[str] = []

    @property
    def client(self) -> PrefectClient:
        return cast(PrefectClient, self)

    async def _call(self, name: str, *args: Any) -> Any:
        self.calls.append(name)
        if self.refused:
            raise _error(self.refused.pop(0))
        return await asyncio.shield(asyncio.ensure_future(self._send(getattr(self.server, name), args)))

    async def _send(self, act: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        await asyncio.sleep(self.delay())
        try:
            return act(*args)
        finally:
            await asyncio.sleep((self.answer_delay or self.delay)())
            if random.random() < self.lost:
                raise httpx.ReadError("the answer was lost")

    async def create_global_concurrency_limit(self, limit: GlobalConcurrencyLimitCreate) -> Any:
        await self._call("create", limit.name, limit.limit)
        return uuid4()

    async def increment_concurrency_slots(self, names: list[str], slots: int, mode: str) -> Any:
        answer = await self._call("increment", names[0], slots)
        return SimpleNamespace(json=lambda: answer)

    async def read_global_concurrency_limits(self, limit: int = 10, offset: int = 0) -> Any:
        return await self._call("read_all", limit, offset)

    async def read_global_concurrency_limit_by_name(self, name: str) -> Any:
        return await self._call("read", name)

    async def delete_global_concurrency_limit_by_name(self, name: str) -> None:
        await self._call("delete", name)


def _error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://server")
    return httpx.HTTPStatusError(
        str(status), request=request, response=httpx.Response(status, request=request)
    )

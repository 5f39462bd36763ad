"""The subscription to events: every event is handled, and a lost connection is opened again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest
from prefect.events import Event

from gpu_flows.worker import events


class Connection:
    """One connection to the server: it delivers these events, and then breaks."""

    def __init__(self, *deliveries: str, refused: bool = False) -> None:
        self._deliveries, self._refused = list(deliveries), refused

    async def __aenter__(self) -> Connection:
        if self._refused:
            raise ConnectionError("refused")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> Connection:
        return self

    async def __anext__(self) -> Event:
        if not self._deliveries:
            raise ConnectionError("lost")
        return Event(event=self._deliveries.pop(0), resource={"prefect.resource.id": "a-run"})


class Server:
    """Offers these connections one after the other. After the last one it is silent."""

    def __init__(self, *connections: Connection) -> None:
        self._connections = list(connections)
        self.filters: list[Any] = []
        self.used_up = asyncio.Event()

    def subscribe(self, filter: Any, reconnection_attempts: int) -> Connection:
        self.filters.append(filter)
        if not self._connections:
            self.used_up.set()
            return Connection(refused=True)
        return self._connections.pop(0)


def follow(
    monkeypatch: pytest.MonkeyPatch, *connections: Connection, handler: Callable[[Event], None]
) -> tuple[Server, int]:
    """Subscribe until the server has no more connections. Returns it, and how often it was connected."""
    connected = []

    async def run() -> Server:
        server = Server(*connections)
        monkeypatch.setattr(events, "get_events_subscriber", server.subscribe)
        monkeypatch.setattr(events, "RECONNECT_AFTER_S", 0.0)
        log = logging.getLogger("test-events")
        subscription = asyncio.ensure_future(
            events.subscribe(["prefect.flow-run."], handler, log, "the-pool", lambda: connected.append(1))
        )
        await asyncio.wait_for(server.used_up.wait(), 60)
        subscription.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscription
        return server

    return asyncio.run(run()), len(connected)


def test_every_event_of_every_connection_is_handled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    server, connected = follow(
        monkeypatch,
        Connection("first", "second"),
        Connection(refused=True),
        Connection("third"),
        handler=lambda event: seen.append(event.event),
    )
    assert seen == ["first", "second", "third"]
    assert connected == 2, "what happened before a connection was missed, so each is announced"
    assert server.filters[0].event.prefix == ["prefect.flow-run."]
    assert server.filters[0].any_resource.id == ["the-pool"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2, "one for each time that the events stop, however often it fails"


def test_a_handler_that_fails_does_not_end_the_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def fail_once(event: Event) -> None:
        seen.append(event.event)
        if len(seen) == 1:
            raise KeyError("unforeseen")

    follow(monkeypatch, Connection("first"), Connection("second"), handler=fail_once)
    assert seen == ["first", "second"]

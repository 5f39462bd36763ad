"""Subscription to events of the Prefect server, so that changes take effect without waiting for a poll.

Events may be missed: during a restart, or with a second server without shared messaging. Subscribers
therefore also poll from time to time. A lost connection is opened again, without a limit on attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from prefect.events import Event
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter

RECONNECT_AFTER_S = 1.0


async def subscribe(
    prefixes: Sequence[str],
    handler: Callable[[Event], None],
    log: logging.Logger,
    resource: str | None = None,
    on_connected: Callable[[], None] = lambda: None,
) -> None:
    """Call the handler for every event whose name has one of these prefixes. Runs until cancelled.
    `on_connected` is called after each connection, because events before it were missed."""
    any_resource = EventAnyResourceFilter(id=[resource]) if resource else None
    event_filter = EventFilter(event=EventNameFilter(prefix=list(prefixes)), any_resource=any_resource)
    warned = False
    while True:
        try:
            async with get_events_subscriber(filter=event_filter, reconnection_attempts=0) as events:
                on_connected()
                warned = False
                async for event in events:
                    handler(event)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            level = logging.DEBUG if warned else logging.WARNING
            log.log(level, "No events from the server (%s); polling until it sends some again.", error)
            warned = True
        await asyncio.sleep(RECONNECT_AFTER_S)

"""News from the Prefect server as it happens, so that nobody has to wait for a poll.

Events may be missed (a restart, a second server without shared messaging); whoever listens here
also polls now and then. A lost connection is taken up again for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prefect.events import Event
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter


async def listen(
    prefix: str,
    tell: Callable[[Event], None],
    log: logging.Logger,
    resource: str | None = None,
    connected: Callable[[], None] = lambda: None,
) -> None:
    """Call `tell` for every event whose name begins so, for ever. `connected` is called each time
    a connection stands: what happened before it was not heard."""
    about = EventAnyResourceFilter(id=[resource]) if resource else None
    wanted = EventFilter(event=EventNameFilter(prefix=[prefix]), any_resource=about)
    told = False
    while True:
        try:
            async with get_events_subscriber(filter=wanted, reconnection_attempts=0) as events:
                connected()
                told = False
                async for event in events:
                    tell(event)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            level = logging.DEBUG if told else logging.WARNING
            log.log(level, "No news from the server (%s); polling until there is.", error)
            told = True
        await asyncio.sleep(1.0)

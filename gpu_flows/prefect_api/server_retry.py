"""Retries calls to the Prefect API until the server has carried them out.

What the worker reports decides whether a run ends, waits again or runs twice. So a report is given up only if
its object was deleted, or if the server rejects it several times for what it contains. A server that is away,
overloaded, or refuses the worker's key for a while, is asked again until it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx
from prefect.exceptions import ObjectNotFound

from gpu_flows.common.retry import Backoff, retry

T = TypeVar("T")
log = logging.getLogger(__name__)

BACKOFF = Backoff(first_s=2.0, factor=1.5, most_s=30.0)
TRIES_WHEN_REJECTED = 5
REFUSALS_FOR_NOW = {401, 403, 408, 425, 429}  # an expired key, a proxy, too many requests


async def retry_until_answered(call: Callable[[], Awaitable[T]], backoff: Backoff = BACKOFF) -> T | None:
    """Call until the server carries it out. Returns None if the object of the call was deleted.
    Raises HTTPStatusError if the server rejects what the call contains."""
    try:
        return await retry(call, backoff, _Patience())
    except ObjectNotFound:
        return None


def is_temporary(error: Exception) -> bool:
    """Return whether the same call may succeed later: no answer, a server error, or a refusal that does not
    concern the call itself."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in REFUSALS_FOR_NOW
    return isinstance(error, httpx.HTTPError)


@dataclass(slots=True)
class _Patience:
    """Decides whether to repeat one call. The first refusal is logged."""

    tries_left: int = TRIES_WHEN_REJECTED
    warned: bool = False

    def __call__(self, error: Exception) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            self._warn(error)
            if not is_temporary(error):
                self.tries_left -= 1
                return self.tries_left > 0
        return is_temporary(error)

    def _warn(self, error: httpx.HTTPStatusError) -> None:
        if not self.warned:
            self.warned = True
            what = f"{error.request.method} {error.request.url.path}"
            log.warning("The server answers %s to %s; trying again.", error.response.status_code, what)

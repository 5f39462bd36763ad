"""Retries calls to the Prefect API until the server answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
from prefect.exceptions import ObjectNotFound

from gpu_flows.common.retry import Backoff, retry

T = TypeVar("T")
EVERY_2_S = Backoff(first_s=2.0)


async def retry_until_answered(call: Callable[[], Awaitable[T]], backoff: Backoff = EVERY_2_S) -> T | None:
    """Call until the server answers. Returns None if the object of the call was deleted.
    Raises HTTPStatusError if the server rejects the call."""
    try:
        return await retry(call, backoff, is_temporary)
    except ObjectNotFound:
        return None


def is_temporary(error: Exception) -> bool:
    """Return whether the same call may succeed later: no answer, a server error, or too many requests."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in (408, 429)
    return isinstance(error, httpx.HTTPError)

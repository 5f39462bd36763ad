"""Gets an image onto a host, and says how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from docker import APIClient
from docker.errors import APIError

from gpu_flows.runtimes.base import LaunchError, Login, NotWanted
from gpu_flows.runtimes.docker.host import Host, HostAway
from gpu_flows.runtimes.docker.rules import tagged

SAY_EVERY_S = 2.0
_MB = 1024 * 1024


def pull(
    host: Host,
    image: str,
    login: Login | None,
    still_wanted: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Returns when the host has the image. Raises LaunchError with the registry's own reason. Blocks."""

    def pulling(api: APIClient) -> None:
        auth = None
        if login:
            auth = {"username": login.username, "password": login.password, "serveraddress": login.registry}
        _follow(api.pull(tagged(image), stream=True, decode=True, auth_config=auth), image, still_wanted, say)

    say(f"Pulling image {image} on host {host.name}.")
    began = time.monotonic()
    try:
        host.ask(pulling, timeout_s=600.0)
    except APIError as error:
        raise LaunchError(_cannot(host, image, error.explanation or str(error))) from None
    except HostAway as error:
        if isinstance(error.__cause__, APIError):  # it is the registry that is away
            raise LaunchError(_cannot(host, image, str(error))) from None
        raise
    except _Failed as error:
        raise LaunchError(_cannot(host, image, str(error))) from None
    say(f"Pulled image {image} in {time.monotonic() - began:.1f} s.")


class _Failed(Exception):
    """The stream of progress ended in an error."""


def _follow(
    progress: Iterable[dict[str, Any]],
    image: str,
    still_wanted: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    layers: dict[str, tuple[int, int]] = {}
    next_word = time.monotonic() + SAY_EVERY_S
    for told in progress:
        if "error" in told:
            raise _Failed(told["error"])
        if not still_wanted():
            raise NotWanted("it was cancelled while its image was pulled")
        detail = told.get("progressDetail") or {}
        if told.get("status") == "Downloading" and detail.get("total"):
            layers[told["id"]] = (detail.get("current", 0), detail["total"])
        elif told.get("status") == "Download complete" and told.get("id") in layers:
            layers[told["id"]] = (layers[told["id"]][1],) * 2
        if layers and time.monotonic() >= next_word:
            next_word = time.monotonic() + SAY_EVERY_S
            done, total = (sum(each) for each in zip(*layers.values(), strict=True))
            say(f"Pulling {image}: {done / _MB:,.0f} of {total / _MB:,.0f} MB.")


def _cannot(host: Host, image: str, why: str) -> str:
    hint = "Check its name; for a private registry name a credentials block in `registry_credentials`."
    return f"host {host.name} cannot pull the image {image!r}: {' '.join(why.split())}. {hint}"

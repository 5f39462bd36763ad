"""Pulls an image onto a host and reports the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from docker import APIClient
from docker.errors import APIError

from gpu_flows.runtimes.base import LaunchCancelled, LaunchError, Login
from gpu_flows.runtimes.docker.host import Host, HostUnreachable
from gpu_flows.runtimes.docker.rules import normal_registry, registry_of, with_tag

PROGRESS_INTERVAL_S = 2.0
_MB = 1024 * 1024


def pull(
    host: Host,
    image: str,
    login: Login | None,
    still_wanted: Callable[[], bool],
    report: Callable[[str], None],
) -> None:
    """Pull the image. Raises LaunchError with the registry's reason. Blocks until the host has it."""
    auth = _choose_login(image, login, report)

    def pull_on_host(api: APIClient) -> None:
        _follow(
            api.pull(with_tag(image), stream=True, decode=True, auth_config=auth), image, still_wanted, report
        )

    report(f"Pulling image {image} on host {host.name}.")
    began = time.monotonic()
    try:
        host.call_blocking(pull_on_host, timeout_s=600.0)
    except APIError as error:
        raise LaunchError(_describe_failure(host, image, error.explanation or str(error))) from None
    except HostUnreachable as error:
        if isinstance(error.__cause__, APIError):  # the engine answered: the registry is unreachable
            raise LaunchError(_describe_failure(host, image, str(error))) from None
        raise
    except _PullFailed as error:
        raise LaunchError(_describe_failure(host, image, str(error))) from None
    report(f"Pulled image {image} in {time.monotonic() - began:.1f} s.")


def _choose_login(image: str, login: Login | None, report: Callable[[str], None]) -> dict[str, str] | None:
    """Return the credentials in Docker's form, if they are for the registry of this image. Docker would send
    them to whatever registry the image's name points at."""
    if login is None:
        return None
    if registry_of(image) != normal_registry(login.registry):
        report(
            f"The registry credentials are for {normal_registry(login.registry)} and are not sent to "
            f"{registry_of(image)}, where {image} comes from."
        )
        return None
    return {"username": login.username, "password": login.password, "serveraddress": login.registry}


class _PullFailed(Exception):
    """The progress stream reported an error."""


def _follow(
    progress: Iterable[dict[str, Any]],
    image: str,
    still_wanted: Callable[[], bool],
    report: Callable[[str], None],
) -> None:
    layers: dict[str, tuple[int, int]] = {}
    next_report = time.monotonic() + PROGRESS_INTERVAL_S
    for event in progress:
        if "error" in event:
            raise _PullFailed(event["error"])
        if not still_wanted():
            raise LaunchCancelled("the job was cancelled while its image was being pulled")
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (detail.get("current", 0), detail["total"])
        elif event.get("status") == "Download complete" and event.get("id") in layers:
            layers[event["id"]] = (layers[event["id"]][1],) * 2
        if layers and time.monotonic() >= next_report:
            next_report = time.monotonic() + PROGRESS_INTERVAL_S
            done, total = (sum(sizes) for sizes in zip(*layers.values(), strict=True))
            report(f"Pulling {image}: {done / _MB:,.0f} of {total / _MB:,.0f} MB.")


def _describe_failure(host: Host, image: str, why: str) -> str:
    hint = "Check the name; for a private registry, name a credentials block in `registry_credentials`."
    return f"host {host.name} cannot pull the image {image!r}: {' '.join(why.split())}. {hint}"

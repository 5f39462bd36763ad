"""Asking a pool's Docker hosts whether they answer, for `gpu-flows up` and `gpu-flows doctor`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # these load Prefect, which takes seconds: not for a pool without Docker
    from gpu_flows.blocks import DockerHost
    from gpu_flows.runtimes.docker.host import Host

CALL_TIMEOUT_S, ALL_TIMEOUT_S = 5.0, 20.0


@dataclass(frozen=True, slots=True)
class ProbedHost:
    """A Docker host with the version of its engine, or why it did not answer."""

    host: Host
    version: str = ""
    error: str = ""


def probe_hosts(hosts: Sequence[DockerHost]) -> list[ProbedHost]:
    """Ask all hosts in parallel, so that one that does not answer delays no other."""
    from docker.errors import APIError

    from gpu_flows.runtimes.docker.host import Host, HostUnreachable

    answers: queue.Queue[tuple[int, ProbedHost]] = queue.Queue()
    opened = [Host(settings) for settings in hosts]

    def probe(number: int, host: Host) -> None:
        try:
            engine = host.call_blocking(lambda api: api.version(), CALL_TIMEOUT_S)
            answers.put((number, ProbedHost(host, str(engine.get("Version", "?")))))
        except (HostUnreachable, APIError) as error:
            answers.put((number, ProbedHost(host, error=str(error))))

    for number, host in enumerate(opened):
        threading.Thread(target=probe, args=(number, host), daemon=True).start()
    probed = {number: ProbedHost(host, error="no answer") for number, host in enumerate(opened)}
    deadline = time.monotonic() + ALL_TIMEOUT_S
    for _ in opened:
        try:
            number, result = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        probed[number] = result
    return [probed[number] for number in sorted(probed)]


def describe_host(settings: DockerHost) -> str:
    """`gpu2 (ssh://lab@gpu2)`."""
    return f"{settings.name} ({settings.url or 'this machine'})"


def describe_error(error: ValueError) -> str:
    """What is wrong with a block or a Docker host, on one line without a full stop."""
    from pydantic import ValidationError

    from gpu_flows.common.validation import explain

    text = explain(error) if isinstance(error, ValidationError) else str(error)
    return text.replace("Value error, ", "").rstrip(".")

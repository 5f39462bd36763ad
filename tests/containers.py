"""Container launches as the dispatcher would make them, and a place where their output arrives."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from docker_hosts.daemon import Daemon

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Container, End, Launch
from gpu_flows.runtimes.docker.output import Line
from gpu_flows.runtimes.docker.runtime import DockerRuntime
from gpu_flows.schedulers.model import Device, Job

T = TypeVar("T")
_numbers = itertools.count(1)


class Heard:
    """A Sink that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.fails = False

    async def send(self, lines: list[Line]) -> None:
        if self.fails:
            raise ConnectionError("nobody there")
        self.lines += lines

    async def count_after(self, job_id: str, at_us: int) -> int:
        return sum(1 for line in self.lines if line.job_id == job_id and line.at_us > at_us and not line.ours)

    def of(self, launch: Launch) -> list[str]:
        return [line.text for line in self.lines if line.job_id == launch.job.id and not line.ours]


def host_of(daemon: Daemon, name: str = "host", **settings: Any) -> DockerHost:
    return DockerHost(name=name, url=daemon.url, gpus=4, **settings)


def launch_of(
    *command: str, node: str = "host", gpus: int = 1, image: str = "bare:test", **more: Any
) -> Launch:
    """A bare container's launch."""
    job = Job(str(uuid.uuid4()), gpus=gpus, name=f"job-{next(_numbers)}")
    devices = tuple(Device(f"SIM-{node}-{index}", node, index) for index in range(gpus))
    of_launch = {
        key: more.pop(key) for key in ("env", "grace_s", "hears_intents", "directory") if key in more
    }
    settings: dict[str, Any] = {"grace_s": 2.0, "hears_intents": False, **of_launch}
    container = Container(image, **more)
    return Launch(job, 1, "pool", "fifo", 0.0, devices, command, container=container, **settings)


def runtime_on(folder: Path, *hosts: DockerHost, sink: Heard | None = None, **more: Any) -> DockerRuntime:
    """A runtime of these hosts. To be made inside a running loop."""
    rules = more.pop("rules", ContainerRules())
    runtime = DockerRuntime(AttemptStore(folder), more.pop("installation", "test"), sink or Heard(), **more)
    runtime.serve(hosts, rules, serves_all=False)
    return runtime


@asynccontextmanager
async def serving(folder: Path, *hosts: DockerHost, **more: Any) -> AsyncIterator[DockerRuntime]:
    """A runtime that has looked round, as a worker that serves has."""
    runtime = runtime_on(folder, *hosts, **more)
    try:
        await runtime.find()
        yield runtime
    finally:
        await runtime.close()


async def run(runtime: DockerRuntime, launch: Launch) -> End:
    """From launch to end, as the dispatcher does it."""
    end = await runtime.wait(await runtime.launch(launch))
    runtime.forget(launch)
    return end


async def soon(look: Callable[[], T], what: str, patience_s: float = 60.0) -> T:
    """The first truthy answer. Patience is a safety net for a slow machine, not an expectation."""
    deadline = time.monotonic() + patience_s
    while not (answer := await asyncio.to_thread(look)):
        assert time.monotonic() < deadline, f"still not so after {patience_s:.0f} s: {what}"
        await asyncio.sleep(0.1)
    return answer


def told(list_: list[Any]) -> Callable[..., None]:
    return lambda *what: list_.append(what)

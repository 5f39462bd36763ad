"""Helpers for tests with containers: launches as the dispatcher makes them, runtimes, and a log sink."""

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
from gpu_flows.runtimes.docker.runtime import DockerRuntime
from gpu_flows.runtimes.output_buffer import LogLine
from gpu_flows.schedulers.model import Device, Job

T = TypeVar("T")
_LAUNCH_FIELDS = ("env", "grace_s", "handles_intents", "directory")
_numbers = itertools.count(1)


class CollectingSink:
    """A LogSink that keeps the lines in memory. It raises while `fails` is set."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.fails = False

    async def send(self, lines: list[LogLine]) -> None:
        if self.fails:
            raise ConnectionError("no connection")
        self.lines += lines

    async def count_after(self, job_id: str, at_us: int) -> int:
        return sum(line.at_us > at_us for line in self.printed(job_id))

    def printed(self, job_id: str) -> list[LogLine]:
        """Return the lines that the job printed, in the order of arrival."""
        return [line for line in self.lines if line.job_id == job_id and not line.from_worker]

    def texts(self, launch: Launch) -> list[str]:
        return [line.text for line in self.printed(launch.job.id)]


def make_launch(
    *command: str, node: str = "host", gpus: int = 1, image: str = "bare:test", **options: Any
) -> Launch:
    """Return a launch on simulated devices. `options` are fields of Launch and of Container."""
    job = Job(str(uuid.uuid4()), gpus=gpus, name=f"job-{next(_numbers)}")
    devices = tuple(Device(f"SIM-{node}-{index}", node, index) for index in range(gpus))
    settings: dict[str, Any] = {"grace_s": 2.0, "handles_intents": False}
    settings |= {key: options.pop(key) for key in _LAUNCH_FIELDS if key in options}
    container = Container(image, **options)
    return Launch(job, 1, "pool", "fifo", 0.0, devices, command, container=container, **settings)


def shell(script: str, **options: Any) -> Launch:
    """Return the launch of a shell script."""
    return make_launch("sh", "-c", script, **options)


def make_runtime(
    folder: Path, *hosts: DockerHost | Daemon, sink: CollectingSink | None = None, **options: Any
) -> DockerRuntime:
    """Return a runtime of these hosts. To be called inside a running event loop."""
    rules, installation = options.pop("rules", ContainerRules()), options.pop("installation", "test")
    runtime = DockerRuntime(AttemptStore(folder), installation, sink or CollectingSink(), **options)
    settings = [host.settings() if isinstance(host, Daemon) else host for host in hosts]
    runtime.configure_hosts(settings, rules, one_for_all=False)
    return runtime


@asynccontextmanager
async def open_runtime(
    folder: Path, *hosts: DockerHost | Daemon, **options: Any
) -> AsyncIterator[DockerRuntime]:
    """A runtime that has searched its hosts for containers, as in a worker that serves its pool."""
    runtime = make_runtime(folder, *hosts, **options)
    try:
        await runtime.find()
        yield runtime
    finally:
        await runtime.close()


async def run(runtime: DockerRuntime, launch: Launch) -> End:
    """Run one attempt from launch to end, as the dispatcher does."""
    end = await runtime.wait(await runtime.launch(launch))
    runtime.forget(launch)
    return end


def run_alone(folder: Path, host: DockerHost | Daemon, launch: Launch) -> tuple[End, CollectingSink]:
    """Run one attempt in a runtime of its own."""

    async def main() -> tuple[End, CollectingSink]:
        sink = CollectingSink()
        async with open_runtime(folder, host, sink=sink) as runtime:
            return await run(runtime, launch), sink

    return asyncio.run(main())


async def wait_for(condition: Callable[[], T], description: str, timeout_s: float = 60.0) -> T:
    """Return the first truthy result. The timeout is a safety net for a slow machine, not an expectation."""
    deadline = time.monotonic() + timeout_s
    while not (result := await asyncio.to_thread(condition)):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {description}"
        await asyncio.sleep(0.1)
    return result

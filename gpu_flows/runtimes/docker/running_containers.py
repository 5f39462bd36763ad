"""The containers that this worker launches or follows."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from gpu_flows.runtimes.base import End, Launch
from gpu_flows.runtimes.docker.container_follower import ContainerFollower
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.host_health import MonitoredHost
from gpu_flows.runtimes.output_buffer import OutputBuffer


@dataclass(slots=True)
class RunningContainer:
    """A container that is followed until its end is recorded everywhere."""

    launch: Launch
    monitored: MonitoredHost
    buffer: OutputBuffer
    ended: asyncio.Future[End]
    may_start: bool  # the follower starts the container if it finds that it has not started
    follower: ContainerFollower | None = None

    @property
    def name(self) -> str:
        return container_name(self.launch)


class RunningContainers:
    """All running containers, and the launches that are under way, by attempt."""

    def __init__(self) -> None:
        self.by_attempt: dict[str, RunningContainer] = {}
        self.launching: dict[str, MonitoredHost] = {}

    def follow(
        self, launch: Launch, monitored: MonitoredHost, buffer: OutputBuffer, may_start: bool = False
    ) -> None:
        """Follow the container of a launch; its `ended` is set when it has ended."""
        loop = asyncio.get_running_loop()
        running = RunningContainer(launch, monitored, buffer, loop.create_future(), may_start)
        self.by_attempt[launch.id] = running

        def set_end(end: End) -> None:
            if not running.ended.done():
                running.ended.set_result(end)

        def on_end(end: End) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closing
                loop.call_soon_threadsafe(set_end, end)

        running.follower = ContainerFollower(
            monitored.host, launch, buffer, on_end, lambda: running.may_start
        )

    def forget(self, attempt: str) -> RunningContainer | None:
        """Stop following the container of an attempt, and return it."""
        running = self.by_attempt.pop(attempt, None)
        if running and running.follower:
            running.follower.close()
        return running

    def knows(self, attempt: str) -> bool:
        """Whether the attempt is running or being launched by this worker."""
        return attempt in self.by_attempt or attempt in self.launching

    def hosts(self) -> list[MonitoredHost]:
        """Return the hosts that are in use."""
        return [running.monitored for running in self.by_attempt.values()] + list(self.launching.values())

    def close(self) -> None:
        for running in self.by_attempt.values():
            if running.follower:
                running.follower.close()

"""The runtimes of a pool as one: a job that names an image runs in a container, any other as a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, Runtime


class Runtimes:
    """A Runtime."""

    def __init__(self, processes: Runtime, containers: Runtime) -> None:
        self._processes, self._containers = processes, containers

    def _for(self, launch: Launch) -> Runtime:
        return self._containers if launch.container else self._processes

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        return await self._for(launch).launch(launch, still_wanted)

    async def wait(self, attempt: Attempt) -> End:
        return await self._for(attempt.launch).wait(attempt)

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        await self._for(attempt.launch).stop(attempt, intent)

    async def find(self) -> list[Found]:
        both = await asyncio.gather(self._processes.find(), self._containers.find())
        return [found for some in both for found in some]

    def forget(self, launch: Launch) -> None:
        self._for(launch).forget(launch)

    def activity(self) -> dict[str, float]:
        return self._processes.activity() | self._containers.activity()

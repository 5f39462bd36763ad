"""One runtime in front of several: it passes each call on to the runtime that serves the launch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, Runtime


class RuntimeRouter:
    """A `Runtime` made of the runtimes of a pool, by the name that `Launch.runtime` returns."""

    def __init__(self, runtimes: Mapping[str, Runtime]) -> None:
        self._runtimes = runtimes

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        return await self._runtime(launch).launch(launch, still_wanted)

    async def wait(self, attempt: Attempt) -> End:
        return await self._runtime(attempt.launch).wait(attempt)

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        await self._runtime(attempt.launch).stop(attempt, intent)

    async def find(self) -> list[Found]:
        found = await asyncio.gather(*(runtime.find() for runtime in self._runtimes.values()))
        return [attempt for attempts in found for attempt in attempts]

    def forget(self, launch: Launch) -> None:
        self._runtime(launch).forget(launch)

    def sample_activity(self) -> dict[str, float]:
        samples = (runtime.sample_activity() for runtime in self._runtimes.values())
        return {job_id: activity for sample in samples for job_id, activity in sample.items()}

    def read_output(self, launch: Launch) -> list[str]:
        return self._runtime(launch).read_output(launch)

    def _runtime(self, launch: Launch) -> Runtime:
        return self._runtimes[launch.runtime]

"""A worker without Prefect, to be killed: launches containers and follows them until then.

    python docker_worker.py FOLDER URL POINT COUNT SCRIPT

FOLDER gets the store of attempts and the output that arrives. POINT is where the worker kills itself:
entered (the attempt is in the store), created (its container exists but has not started), or never.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from containers import launch_of, serving

from gpu_flows.blocks import DockerHost
from gpu_flows.runtimes.base import Launch
from gpu_flows.runtimes.docker import launching
from gpu_flows.runtimes.docker.output import Line


class Paper:
    """A Sink that outlives its worker."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    async def send(self, lines: list[Line]) -> None:
        with self._file.open("a") as paper:
            paper.write("".join(json.dumps(line) + "\n" for line in lines))

    async def count_after(self, job_id: str, at_us: int) -> int:
        return sum(1 for line in self.lines(job_id) if line.at_us > at_us)

    def of(self, launch: Launch) -> list[str]:
        return [line.text for line in self.lines(launch.job.id)]

    def lines(self, job_id: str) -> list[Line]:
        """The job's own, as they arrived."""
        found = [Line(*json.loads(text)) for text in self._file.read_text().splitlines()]
        return [line for line in found if line.job_id == job_id and not line.ours]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: str, url: str, point: str, count: str, script: str) -> None:
    if point == "entered":
        launching._create = die  # type: ignore[assignment]
    elif point == "created":
        launching._start = die  # type: ignore[assignment]
    host = DockerHost(name="host", url=url, gpus=4)
    async with serving(Path(folder), host, sink=Paper(Path(folder, "output"))) as docker:
        launches = [launch_of("sh", "-c", script, env={"N": str(n)}) for n in range(int(count))]
        await asyncio.gather(*(docker.launch(launch) for launch in launches))
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

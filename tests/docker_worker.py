"""A worker without Prefect that tests can kill: it launches containers and follows them.

    python docker_worker.py FOLDER URL POINT COUNT SCRIPT

FOLDER receives the attempt store and the output. POINT is where the worker kills itself:
stored (the attempt is in the store), created (its container exists but has not started), or never.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from containers import CollectingSink, make_launch, open_runtime

from gpu_flows.blocks import DockerHost
from gpu_flows.runtimes.docker import container_start
from gpu_flows.runtimes.output_buffer import LogLine


class FileSink(CollectingSink):
    """A log sink whose lines outlive the worker."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        file.touch()

    async def send(self, lines: list[LogLine]) -> None:
        with self._file.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def printed(self, job_id: str) -> list[LogLine]:
        self.lines = [LogLine(*json.loads(text)) for text in self._file.read_text().splitlines()]
        return super().printed(job_id)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: str, url: str, point: str, count: str, script: str) -> None:
    if point == "stored":
        container_start.ContainerStart._create = die  # type: ignore[assignment]
    elif point == "created":
        container_start._start = die  # type: ignore[assignment]
    host = DockerHost(name="host", url=url, gpus=4)
    async with open_runtime(Path(folder), host, sink=FileSink(Path(folder, "output"))) as docker:
        launches = [make_launch("sh", "-c", script, env={"N": str(n)}) for n in range(int(count))]
        await asyncio.gather(*(docker.launch(launch) for launch in launches))
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

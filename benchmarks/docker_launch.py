"""Measures what the worker adds to the launch of a container, compared with Docker's own client.

    python benchmarks/docker_launch.py [--docker unix:///var/run/docker.sock] [--image IMAGE] [--runs 40]

Each round launches one container each way, in random order, on the same engine. "ours" is everything that the
worker does between the plan and the started container: rules, attempt store, labels, limits and a follower
for the output. "bare" is the same container, with the same devices, limits and labels, by two calls of the
SDK. A job with a secret is measured too: its file is copied into the container before the start, which a
bare launch does not do. Without --docker the benchmark starts its own engine, as root, and builds an image.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from common import SPREAD_HEADING, Goal, Spread, log_progress, make_parser, report, run_benchmark
from docker import APIClient

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Container, Launch
from gpu_flows.runtimes.docker.container_spec import container_name, create_arguments
from gpu_flows.runtimes.docker.host import Host, connect
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.runtimes.docker.output import LogLine
from gpu_flows.runtimes.docker.runtime import DockerRuntime
from gpu_flows.schedulers.model import Device, Job

TESTS = Path(__file__).parents[1] / "tests"
MOST = 1.1  # of the bare launch
COMMAND = ("sleep", "60")
WARM_UP = 3
QUIET_S = 0.7


class DiscardingSink:
    """A log sink that discards all output."""

    async def send(self, lines: list[LogLine]) -> None:
        pass

    async def count_after(self, job_id: str, at_us: int) -> int:
        return 0


@contextlib.contextmanager
def engine(address: str, image: str) -> Iterator[tuple[str, str]]:
    """Yield the address of an engine and an image that it has."""
    if address:
        yield address, image or "busybox"
        return
    sys.path.insert(0, str(TESTS))
    from docker_hosts.daemon import Daemon, can_run
    from docker_hosts.images import bare_image

    if reason := can_run():
        sys.exit(f"{reason} Name an engine with --docker.")
    log_progress("starting a Docker engine")
    with Daemon("benchmark") as daemon:
        yield daemon.url, bare_image(daemon.client())


def make_launch(image: str, **secrets: str) -> Launch:
    job = Job(str(uuid.uuid4()), gpus=2, name="benchmark")
    devices = tuple(Device(f"SIM-bench-{index}", "bench", index) for index in range(2))
    return Launch(
        job,
        1,
        "benchmark",
        "fifo",
        time.time(),
        devices,
        COMMAND,
        handles_intents=False,
        container=Container(image, secrets=secrets),
    )


async def ours(runtime: DockerRuntime, launch: Launch) -> float:
    began = time.perf_counter()
    await runtime.launch(launch, lambda: True)
    return time.perf_counter() - began


def bare(api: APIClient, host: Host, launch: Launch) -> float:
    """Measure a launch through the SDK. Building the arguments does not count."""
    arguments = create_arguments(api, launch, "benchmark", host, ContainerRules(), OpenMounts((), ""))
    began = time.perf_counter()
    created = api.create_container(**arguments)
    api.start(created["Id"])
    return time.perf_counter() - began


async def measure(address: str, image: str, runs: int) -> dict[str, list[float]]:
    settings = DockerHost(name="bench", url=address, gpus=2, insecure=address.startswith("tcp:"))
    host, api = Host(settings), connect(settings, 60.0)
    chance = random.Random(0)
    took: dict[str, list[float]] = {"bare": [], "ours": [], "ours, with a secret": []}
    with tempfile.TemporaryDirectory() as folder:
        runtime = DockerRuntime(AttemptStore(Path(folder)), "benchmark", DiscardingSink())
        runtime.configure_hosts([settings], ContainerRules(), one_for_all=False)
        await runtime.find()  # returns after the first health check

        async def once(way: str) -> float:
            launch = make_launch(image, **({"TOKEN": "abc"} if "secret" in way else {}))
            try:
                if way == "bare":
                    return await asyncio.to_thread(bare, api, host, launch)
                return await ours(runtime, launch)
            finally:
                remove = _removal(api, container_name(launch))
                await asyncio.to_thread(remove)
                runtime.forget(launch)

        try:
            for number in range(WARM_UP + runs):
                for way in chance.sample(list(took), len(took)):
                    seconds = await once(way)
                    await asyncio.sleep(QUIET_S)  # the engine finishes the previous launch
                    if number >= WARM_UP:
                        took[way].append(seconds)
        finally:
            await runtime.close()
            host.close()
    return took


def _removal(api: APIClient, name: str) -> Callable[[], None]:
    return lambda: api.remove_container(name, force=True)


def main() -> int:
    parser = make_parser(__doc__ or "", runs=40, what="launches each way")
    parser.add_argument("--docker", default="", metavar="ADDRESS", help="an engine that runs already")
    parser.add_argument("--image", default="", help="an image it has, with a `sleep` in it")
    options = parser.parse_args()
    with engine(options.docker, options.image) as (address, image):
        took = asyncio.run(measure(address, image, options.runs))
    print(f"{'milliseconds, from plan to started':<36}{SPREAD_HEADING}")
    spreads = {way: Spread.of(seconds) for way, seconds in took.items()}
    for way, spread in spreads.items():
        print(f"{way:<36}{spread.text(1000, 1)}")
    ratio = spreads["ours"].median / spreads["bare"].median
    goals = [Goal("ours over bare, medians", ratio, MOST)]
    return report(goals, {way: asdict(spread) for way, spread in spreads.items()}, options.json)


if __name__ == "__main__":
    run_benchmark(main)

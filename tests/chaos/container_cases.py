"""Jobs that try to see more of the host than they may."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from chaos.lab import Lab
from chaos.workload import Counts
from containers import CollectingSink, open_runtime, run, shell
from docker_hosts.daemon import Daemon, can_run
from docker_hosts.images import bare_image

from gpu_flows.blocks import ContainerRules
from gpu_flows.common.retry import wait_until
from gpu_flows.runtimes.base import LaunchError, Mount


def raced_mounts(lab: Lab) -> Counts:
    """While containers are launched, the directory that they mount is replaced by a link to /etc and back."""
    if reason := can_run():
        pytest.skip(reason)
    root = lab.folder / "mounts"
    (root / "data").mkdir(parents=True)
    (root / "data/mine").touch()
    counts = Counts()
    stop = threading.Event()
    flipping = threading.Thread(target=_flip, args=(root, stop))
    with Daemon() as engine:
        bare_image(engine.client(), "bare:test")
        flipping.start()
        try:
            asyncio.run(_launch_again_and_again(lab, engine, root, counts))
        finally:
            stop.set()
            flipping.join()
    return counts


def _flip(root: Path, stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(OSError):
            os.rename(root / "data", root / "aside")
            os.symlink("/etc", root / "data")
            time.sleep(0.002)
            os.unlink(root / "data")
            os.rename(root / "aside", root / "data")
            time.sleep(0.004)


async def _launch_again_and_again(lab: Lab, engine: Daemon, root: Path, counts: Counts) -> None:
    rules, sink = ContainerRules(mount_roots=[str(root)], keep_seconds=0), CollectingSink()
    launches = []
    async with open_runtime(lab.folder / "store", engine, sink=sink, rules=rules) as docker:

        async def launch() -> None:
            job = shell("ls /x", mounts=(Mount(str(root / "data"), "/x"),))
            launches.append(job)
            with suppress(LaunchError):  # a link is refused
                await run(docker, job)

        for _ in lab.rounds():
            await asyncio.gather(*(launch() for _ in range(4)))
        await asyncio.to_thread(wait_until, lambda: not engine.list_containers(), 60)
    # The runtime has delivered all output when it closes.
    seen = [sink.texts(launch) for launch in launches]
    assert ["mine"] in seen, "no container was started, so nothing is shown"
    counts.runs = len(launches)
    counts.escaped = sum("passwd" in names for names in seen)
    counts.leaked = len(engine.list_containers())

"""Jobs, policies and disks that misbehave."""

from __future__ import annotations

import contextlib
import os
import subprocess
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from chaos.lab import Lab
from chaos.workload import Counts

from gpu_flows.common.retry import wait_until
from gpu_flows.schedulers.policy import policies

HOSTILE = """
    import os, sys, time
    from gpu_flows.schedulers.policies.fifo import Fifo

    class Sleeps(Fifo):
        name = "sleeps"
        def plan(self, state):
            time.sleep(20)

    class Exits(Fifo):
        name = "exits"
        def plan(self, state):
            sys.exit(1)

    class Dies(Fifo):
        name = "dies"
        def plan(self, state):
            os._exit(1)

    class Raises(Fifo):
        name = "raises"
        def plan(self, state):
            raise RuntimeError("no plan today")

    class Allocates(Fifo):
        name = "allocates"
        def plan(self, state):
            self.memory = getattr(self, "memory", []) + [bytearray(500_000_000)]
            super().plan(state)
"""


def double_forks(lab: Lab) -> Counts:
    """Jobs leave processes behind: in sessions of their own, with an empty environment."""
    stack = lab.stack()
    load = lab.workload(stack)
    stack.start_worker()
    mark = f"{time.time_ns() % 10**9}"  # the processes are found by this argument
    for _ in lab.rounds():
        load.add(4, seconds=0.5, script=f'env -i setsid sh -c "sleep 7{mark} & sleep 8{mark}" & sleep 0.2')
        load.add(2, seconds=0.5, flow=True, script=f"setsid sleep 9{mark} & sleep 0.2")
        lab.pause(2, 4)
    counts = load.judge()
    wait_until(lambda: not _processes_with(mark), 20)
    for process in (left := _processes_with(mark)):
        process.kill()
    counts.leaked += len(left)
    return counts


def _processes_with(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["name"] == "sleep" and words[1:] and words[1][1:] == mark:
            found.append(process)
    return found


def much_output(lab: Lab) -> Counts:
    """Jobs print 200 MB each (20 MB in a short version), in lines and in one line."""
    lab.round = 1
    stack = lab.stack()
    load = lab.workload(stack)
    stack.start_worker()
    size = 200_000_000 if lab.seconds > 60 else 20_000_000
    load.add(2, seconds=0.1, script=f"yes some text | head -c {size}")
    load.add(1, seconds=0.1, script=f"head -c {size} /dev/zero")
    load.add(3, seconds=0.5)
    return load.judge(patience_s=420)


def swapped_policies(lab: Lab) -> Counts:
    """The policy is swapped every second under load."""
    stack = lab.stack()
    load = lab.workload(stack)
    stack.start_worker()
    names = [name for name, policy in policies().items() if not policy.preempts]
    for number in lab.rounds():
        load.add(4, seconds=(0.1, 2), expected_seconds=1)
        load.pool.save_policy(names[number % len(names)])
        lab.pause(0.5, 1.5)
    return load.judge()


def hostile_policies(lab: Lab) -> Counts:
    """Policies of a plugin that sleep, raise, allocate, exit and end the process. The worker outlives all."""
    plugin = _install_plugin(lab.folder / "plugin")
    stack = lab.stack()
    load = lab.workload(stack)
    stack.start_worker(PYTHONPATH=f"{plugin}:{os.environ.get('PYTHONPATH', '')}")
    for name in ("sleeps", "raises", "allocates", "exits", "dies"):
        lab.round += 1
        load.pool.save_policy(name)
        load.add(8, seconds=0.2)
        lab.pause(1, 2)
        wait_until(load.is_done, 60)
        assert stack.worker_alive(), f"policy {name!r} has ended the worker"
    load.pool.save_policy("fifo")
    return load.judge()


def _install_plugin(folder: Path) -> Path:
    """Make an installed package of the hostile policies."""
    info = folder / "hostile-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "hostile.py").write_text(textwrap.dedent(HOSTILE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    names = ("Sleeps", "Exits", "Dies", "Raises", "Allocates")
    lines = [f"{name.lower()} = hostile:{name}" for name in names]
    (info / "entry_points.txt").write_text("\n".join(["[gpu_flows.policies]", *lines, ""]))
    return folder


def full_disk(lab: Lab) -> Counts:
    """The disk of the worker's home is full for a while."""
    home = lab.folder / "small"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "chaos", str(home)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("A small file system needs root.")
    try:
        return _fill_again_and_again(lab, home)
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def _fill_again_and_again(lab: Lab, home: Path) -> Counts:
    stack = lab.stack(home=home)
    load = lab.workload(stack)
    stack.start_worker()
    filler = home / "filler"
    for _ in lab.rounds():
        running = set(load.add(4, seconds=2))
        # A job that starts while the disk is full may end in any way.
        wait_until(lambda running=running: running <= load.started(), 60)
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
        load.add(4, seconds=0.5, any_end=True)
        lab.pause(4, 8)
        filler.unlink()
        lab.pause(1, 2)
    counts = load.judge()
    stack.close()
    return counts

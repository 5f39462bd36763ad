"""Finds and removes what an engine leaves behind: processes, cgroups and mounts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from gpu_flows.common.retry import wait_until

TIMEOUT_S = 20.0  # what cannot be removed must not block the tests
SHIM_SOCKETS = Path("/run/containerd/s")


def kill_shims(folder: Path) -> None:
    """Kill the shims of the engine in this folder. Each runs one container, and outlives dockerd."""
    address = str(folder / "exec/containerd/containerd.sock")
    sockets = [note.read_text() for note in folder.glob("exec/containerd/daemon/*/moby/*/address")]
    kill(process for process in psutil.process_iter() if address in _arguments(process))
    for socket in sockets:  # outside of the folder
        path = Path(socket.strip().removeprefix("unix://"))
        if path.parent == SHIM_SOCKETS:
            path.unlink(missing_ok=True)


def remove_cgroup(name: str) -> None:
    """Kill all that runs in this cgroup or below it, in every hierarchy, and remove it."""
    top = Path("/sys/fs/cgroup")
    roots = [root for root in (top / name, *top.glob(f"*/{name}")) if root.is_dir()]

    def empty() -> bool:
        for root in roots:
            for below in sorted((Path(found[0]) for found in os.walk(root)), reverse=True):
                _thaw(below)
                for pid in _processes_in(below):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with suppress(OSError):
                    below.rmdir()
        return not any(root.exists() for root in roots)

    wait_until(empty, TIMEOUT_S, every_s=0.01)


def bridges(folder: Path) -> set[str]:
    """Return the bridges of the networks that tests created in this engine, from the engine's database."""
    try:
        database = (folder / "data/network/files/local-kv.db").read_bytes()
    except OSError:
        return set()
    return {name.decode() for name in re.findall(rb'"BridgeName":"(br-[0-9a-f]{12})"', database)}


def unmount(folder: Path) -> None:
    """Unmount what is mounted on the folder or below it, in reverse order."""

    def nothing_left() -> bool:
        fields = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        points = [field[4] for field in fields if f"{field[4]}/".startswith(f"{folder}/")]
        for point in reversed(points):
            subprocess.run(["umount", "--lazy", point], capture_output=True)
        return not points

    wait_until(nothing_left, TIMEOUT_S, every_s=0.01)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill the processes and wait until they have ended."""
    killed = list(processes)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    wait_for_end(killed)


def wait_for_end(processes: Iterable[psutil.Process], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until these processes have ended. A zombie counts as ended."""
    waited_for = list(processes)
    wait_until(lambda: not any(_runs(process) for process in waited_for), timeout_s, every_s=0.01)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _processes_in(cgroup: Path) -> list[int]:
    try:
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _thaw(cgroup: Path) -> None:
    """Resume a paused container: signals reach it only then."""
    for file, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        with suppress(OSError):
            if (cgroup / file).exists():
                (cgroup / file).write_text(thawed)

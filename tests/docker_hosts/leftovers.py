"""Finds and removes what an engine leaves behind: processes, cgroups and mounts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE_S = 20.0
SHIM_SOCKETS = Path("/run/containerd/s")


def kill_shims(folder: Path) -> None:
    """The shims of an engine that lives in this folder: each watches one container, and outlives dockerd."""
    address = str(folder / "exec/containerd/containerd.sock")
    sockets = [note.read_text() for note in folder.glob("exec/containerd/daemon/*/moby/*/address")]
    kill(process for process in psutil.process_iter() if address in _arguments(process))
    for socket in sockets:  # they are outside of the folder
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

    _wait(empty)


def bridges(folder: Path) -> set[str]:
    """The bridges of the networks that tests made in this engine, out of its own database."""
    try:
        database = (folder / "data/network/files/local-kv.db").read_bytes()
    except OSError:
        return set()
    return {name.decode() for name in re.findall(rb'"BridgeName":"(br-[0-9a-f]{12})"', database)}


def unmount(folder: Path) -> None:
    """What is mounted on the folder or below it, the last mounted first."""

    def nothing_left() -> bool:
        fields = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        points = [field[4] for field in fields if f"{field[4]}/".startswith(f"{folder}/")]
        for point in reversed(points):
            subprocess.run(["umount", "--lazy", point], capture_output=True)
        return not points

    _wait(nothing_left)


def kill(processes: Iterable[psutil.Process]) -> None:
    """At once, and wait until they are gone."""
    killed = list(processes)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    gone(killed, PATIENCE_S)


def gone(processes: Iterable[psutil.Process], patience_s: float) -> None:
    """Wait until these ended. One that ended and that nobody asked for is a zombie, which is as good."""
    waited_for = list(processes)
    _wait(lambda: not any(_runs(process) for process in waited_for), patience_s)


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
    """A paused container dies only when it runs again."""
    for file, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        with suppress(OSError):
            if (cgroup / file).exists():
                (cgroup / file).write_text(thawed)


def _wait(done: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Until it is done, or for as long as it is worth: what cannot be removed must not hang the tests."""
    deadline = time.monotonic() + patience_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)

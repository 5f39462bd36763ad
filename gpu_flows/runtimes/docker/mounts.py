"""Mounts of host directories that no job can redirect.

A container that has a directory mounted can replace what is in it by symbolic links, also between the check
of another job's mount and the moment at which Docker mounts it. So a directory under a mount root is opened
once, step by step and without following links, and Docker mounts what was opened: as a volume on
`/proc/PID/fd/N` of the worker. Only a mount root itself is mounted by its path, since jobs cannot replace it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from docker.types import DriverConfig
from docker.types import Mount as DockerMount

from gpu_flows.runtimes.base import LaunchError, Mount, Refused

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenMounts:
    """The directories that were opened for one container, to be closed when it has ended."""

    def __init__(self, roots: Iterable[str], socket_path: str) -> None:
        self._roots = outermost_roots(roots)
        self._socket = socket_path  # of the engine; empty if it is on another machine
        self._opened: dict[Mount, int] = {}

    def to_docker(self, mount: Mount) -> DockerMount:
        """Return the mount in Docker's form. Its source has been checked, and has no links at that time.
        Raises Refused if it has now."""
        root = next((root for root in self._roots if _is_below(mount.source, root)), None)
        if root is None or not self._socket:
            return DockerMount(
                mount.target, mount.source, type="bind", read_only=mount.read_only, propagation="rprivate"
            )
        if mount not in self._opened:
            if not _shares_processes(self._socket):
                raise Refused(
                    f"{mount.source!r} cannot be mounted safely, because the Docker engine does not see the "
                    "worker's processes. Mount one of the mount roots itself"
                )
            self._opened[mount] = open_below(root, mount.source)
        # The volume itself is read-only: Docker refuses to mount an anonymous one so.
        mode = "rbind,ro" if mount.read_only else "rbind"
        options = {"type": "none", "o": mode, "device": self._device(mount)}
        driver = DriverConfig("local", options)
        return DockerMount(mount.target, None, type="volume", no_copy=True, driver_config=driver)

    def check_created(self, inspected: Mapping[str, Any]) -> None:
        """Raise LaunchError if the container was created with directories of another process, which may be
        gone, with another one under its number."""
        ours = {mount.target: self._device(mount) for mount in self._opened}
        for mount in inspected["HostConfig"].get("Mounts") or ():
            driver = (mount.get("VolumeOptions") or {}).get("DriverConfig") or {}
            device = (driver.get("Options") or {}).get("device")
            if device and device != ours.get(mount["Target"]):
                raise LaunchError("its container was created by a worker that has ended")

    def _device(self, mount: Mount) -> str:
        return f"/proc/{os.getpid()}/fd/{self._opened[mount]}"

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.popitem()[1])


def outermost_roots(roots: Iterable[str]) -> list[str]:
    """Return the roots that no job can replace, with their links resolved.

    A job that has a root mounted can replace everything in it by links. So a root counts only if neither its
    path nor a link on the way to it is in another root. The paths as they are written are compared first:
    they do not depend on links, so no job can exclude a root by a link of its own.
    """
    written = {os.path.normpath("/" + root.lstrip("/")) for root in roots if root.startswith("/")}
    outer = {root for root in written if not any(_is_below(root, other) for other in written)}
    real = {root: os.path.realpath(root) for root in outer}
    return sorted(
        {
            real[root]
            for root in outer
            if not any(_is_below(step, other) for step in _steps_to(root) for other in real.values())
        }
    )


def open_below(root: str, path: str) -> int:
    """Open a directory under the root without following any link. Raises Refused."""
    opened = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in PurePosixPath(path).relative_to(root).parts:
            parent, opened = opened, os.open(name, _STEP, dir_fd=opened)
            os.close(parent)
    except OSError as error:
        os.close(opened)
        raise Refused(f"{path!r} cannot be mounted: {error.strerror}") from None
    return opened


def _steps_to(path: str) -> Iterator[str]:
    """Iterate over all paths, also of links, that the kernel looks up on the way to this one."""
    at, names = "/", [*reversed(PurePosixPath(path).parts[1:])]
    links_left = 40  # more than that is a loop
    while names:
        name = names.pop()
        if name == "..":
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name)
        yield step
        try:
            link = PurePosixPath(os.readlink(step))
        except OSError:  # no link
            at = step
            continue
        links_left -= 1
        if not links_left:
            return
        at = "/" if link.is_absolute() else at
        names += reversed(link.parts[1:] if link.is_absolute() else link.parts)


def _is_below(path: str, root: str) -> bool:
    return path != root and PurePosixPath(path).is_relative_to(root)


def _shares_processes(socket_path: str) -> bool:
    """Whether the engine has the same numbers for processes as the worker."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(socket_path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, _, _ = struct.unpack("3i", credentials)  # 0 for a process that the worker cannot see
        lines = Path(f"/proc/{pid}/status").read_text().splitlines() if pid else []
    except OSError:
        return False
    return any(line.split() == ["NSpid:", str(pid)] for line in lines)

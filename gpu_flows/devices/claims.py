"""GPUs belong to one pool at a time: on this machine, and on a Docker host.

On this machine a claim is a Unix socket with an abstract name, which the kernel gives to one process only and
frees when that process ends, however it ends. A second name beside it tells which pool has the GPU. Jobs that
run as processes inherit the sockets of their GPUs, so that no other pool uses these while a job outlives its
worker. On a Docker host a claim is an empty volume whose labels name the pool; it stays until it is removed
there.

A pool may claim a GPU again that it has already: its lease lets only one of its workers act.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from gpu_flows.devices.base import DeviceError, Reading
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.runtimes.docker.host import HEALTH_CHECK_S, INSTALLATION, Host
from gpu_flows.schedulers.model import Device, Node

if TYPE_CHECKING:
    from docker import APIClient

PREFIX = "gpu-flows/gpu/"
CLAIM_AGAIN_S = 10.0
_LONGEST_NAME = 107  # bytes of a socket's name
OWNER, POOL = "gpu-flows.claim-owner", "gpu-flows.claim-pool"  # labels of a volume


class Claims(Protocol):
    """Claims of GPUs for one pool."""

    def claim(self, device_id: str) -> str:
        """Claim a GPU. Return who else has it; empty if this pool has it now."""
        ...

    def release(self) -> None:
        """Release all GPUs that were claimed here."""
        ...


class MachineClaims:
    """Claims on this machine. `owner` identifies the pool, also among pools of the same name."""

    # By owner and GPU: the sockets, and how many sources of this process have the claim. A new source of a
    # pool claims its GPUs before the old one is closed.
    _shared: ClassVar[dict[tuple[str, str], tuple[list[socket.socket], int]]] = {}

    def __init__(self, owner: str, pool: str) -> None:
        self._owner, self._pool = owner, pool
        self._held: set[str] = set()

    def claim(self, device_id: str) -> str:
        if device_id in self._held:
            return ""
        key = f"{PREFIX}{device_id}"
        sockets, count = self._shared.get((self._owner, device_id), ([], 0))
        if not sockets:
            try:
                sockets = [_bind(key)]
            except OSError:
                owner, pool = _find_holder(key)
                if owner == self._owner:
                    return ""  # by another worker of this pool; it is claimed again when that has ended
                return f"pool {pool!r}" if pool else "another pool"
            label = f"{key}={self._owner}={self._pool}".encode()[: _LONGEST_NAME - 1]
            with contextlib.suppress(OSError):
                sockets.append(_bind(label.decode(errors="ignore")))
        self._shared[self._owner, device_id] = (sockets, count + 1)
        self._held.add(device_id)
        return ""

    def release(self) -> None:
        while self._held:
            key = (self._owner, self._held.pop())
            sockets, count = self._shared.pop(key)
            if count > 1:
                self._shared[key] = (sockets, count - 1)
            else:
                for claim in sockets:
                    claim.close()


def claims_of(devices: Iterable[Device]) -> list[int]:
    """Return the file descriptors of the sockets by which this process has claimed these GPUs."""
    ids = {device.id for device in devices}
    shared = MachineClaims._shared.items()
    return [claim.fileno() for (_, device_id), (claims, _) in shared if device_id in ids for claim in claims]


def _bind(name: str) -> socket.socket:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0{name}")
    except OSError:
        claim.close()
        raise
    return claim


def _find_holder(key: str) -> tuple[str, str]:
    """Return owner and pool of a claimed GPU, as far as the kernel's list of sockets tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            _, found, label = line.partition(f"@{key}=")
            if found:
                owner, _, pool = label.partition("=")
                return owner, pool
    return "", ""


class HostClaims:
    """Claims on a Docker host. Whoever creates the volume of a GPU has it, until the volume is removed: by
    `release`, unless containers of the pool go on, or by hand.

    All workers of a pool share the volume. So only the one that leads the pool may remove it: a worker that
    has led and stands by now would free the GPUs that the leader uses.
    """

    _uses: ClassVar[Counter[tuple[str, str, str]]] = Counter()  # by host, owner and GPU, as above

    def __init__(
        self, host: Host, owner: str, pool: str, is_leading: Callable[[], bool] = lambda: True
    ) -> None:
        self._host, self._owner, self._pool, self._is_leading = host, owner, pool, is_leading
        self._held: set[str] = set()

    def claim(self, device_id: str) -> str:
        if device_id in self._held:
            return ""
        name, labels = _volume_name(device_id), {OWNER: self._owner, POOL: self._pool}
        try:
            # Of a volume that exists, Docker returns the labels with which it was created.
            volume = self._host.call_blocking(
                lambda api: api.create_volume(name, "local", None, labels), HEALTH_CHECK_S
            )
        except Exception as error:  # without an answer it is unknown, so the GPU is not used
            return f"an unknown pool ({error})"
        found = volume.get("Labels") or {}
        if found.get(OWNER) == self._owner:
            self._held.add(device_id)
            self._uses[self._host.name, self._owner, device_id] += 1
            return ""
        return f"pool {found.get(POOL, '')!r} (if that is gone, run `docker volume rm {name}` there)"

    def release(self) -> None:
        while self._held:
            device_id = self._held.pop()
            self._uses[self._host.name, self._owner, device_id] -= 1
            if not self._uses[self._host.name, self._owner, device_id] and self._is_leading():
                with contextlib.suppress(Exception):  # it stays, and the next worker of this pool has it
                    self._host.call_blocking(partial(self._remove, device_id), HEALTH_CHECK_S)

    def _remove(self, device_id: str, api: APIClient) -> None:
        running = api.containers(filters={"label": INSTALLATION})
        if not any(listed["Labels"][INSTALLATION].startswith(self._owner) for listed in running):
            api.remove_volume(_volume_name(device_id))


class AllClaims:
    """Several claims as one: a GPU must be free in all of them."""

    def __init__(self, *claims: Claims) -> None:
        self._claims = claims

    def claim(self, device_id: str) -> str:
        return next((holder for claims in self._claims if (holder := claims.claim(device_id))), "")

    def release(self) -> None:
        for claims in self._claims:
            claims.release()


def _volume_name(device_id: str) -> str:
    return "gpu-flows-" + "".join(letter if letter.isalnum() else "-" for letter in device_id)


class ClaimedDevices:
    """Devices that this pool has claimed, of all that NVML lists. The others are claimed as soon as they are
    released."""

    name = "nvml"

    def __init__(self, source: NvmlDevices, claims: Claims, only: Sequence[str] = ()) -> None:
        """With `only`, all GPUs but these are left to others; they are given by index or id."""
        self._source, self._claims, self._only = source, claims, set(only)
        self._all: list[Node] = []
        self._returned: list[Node] = []
        self._taken: dict[str, str] = {}  # device id -> who has it
        self._claim_at = 0.0

    def nodes(self, wait_for_start: bool = True) -> list[Node]:
        listed = self._source.nodes(wait_for_start)
        self._all = [_with_devices(node, filter(self._is_wanted, node.devices)) for node in listed]
        if not any(node.devices for node in self._all):
            raise DeviceError(f"None of the GPUs {', '.join(sorted(self._only))} is on this machine.")
        self._claim()
        self._returned = self._offered()
        if not any(node.devices for node in self._returned):
            raise DeviceError(self.problem)
        return self._returned

    def read(self) -> list[Reading]:
        if time.monotonic() >= self._claim_at:
            self._claim()
        offered = {device.id for node in self._offered() for device in node.devices}
        return [reading for reading in self._source.read() if reading.device_id in offered]

    def changed_nodes(self) -> list[Node] | None:
        before, self._returned = self._returned, self._offered()
        return self._returned if self._returned != before else None

    @property
    def problem(self) -> str:
        holders: dict[str, list[str]] = {}
        for device_id, holder in self._taken.items():
            holders.setdefault(holder, []).append(self._describe(device_id))
        taken = [f"{', '.join(devices)}: used by {holder}." for holder, devices in holders.items()]
        return " ".join(filter(None, (self._source.problem, *taken)))

    def close(self) -> None:
        self._claims.release()
        self._source.close()

    def _is_wanted(self, device: Device) -> bool:
        return not self._only or bool(self._only & {str(device.index), device.id})

    def _claim(self) -> None:
        self._claim_at = time.monotonic() + CLAIM_AGAIN_S
        devices = [device for node in self._all for device in node.devices]
        answers = {device.id: self._claims.claim(device.id) for device in devices}
        self._taken = {device_id: holder for device_id, holder in answers.items() if holder}

    def _offered(self) -> list[Node]:
        taken = self._taken
        return [_with_devices(node, (d for d in node.devices if d.id not in taken)) for node in self._all]

    def _describe(self, device_id: str) -> str:
        devices = [(node.name, d.index) for node in self._all for d in node.devices if d.id == device_id]
        return " ".join(f"GPU {index} of {node}" for node, index in devices)


def _with_devices(node: Node, devices: Iterable[Device]) -> Node:
    return replace(node, devices=tuple(devices))

"""The GPUs of a machine, read through NVML, and the rules that decide whether a GPU is healthy.

The rules are those of NVIDIA's own device plugin for Kubernetes and of DCGM:

- A critical Xid makes a device unhealthy, except for the Xids that a faulty program causes. The device stays
  unhealthy until this source is opened again, which is to be done after a reset of the GPU.
- An uncorrectable memory error makes a device unhealthy until a reset sets the device's error count to zero.
- A device that is lost, missing from NVML's list, or not read within the deadline is unhealthy until it is
  back.

A value that a device does not support is None and not a fault. Every NVML call happens in another process
(see `probe.py`), so a driver that hangs delays the caller by at most the deadline.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import psutil

from gpu_flows.devices.base import DeviceError, NoDevices, Reading
from gpu_flows.devices.probe import Probe, ProbeError
from gpu_flows.devices.process_probe import ProcessProbe
from gpu_flows.schedulers.cluster.device_links import group_pairs
from gpu_flows.schedulers.model import DEFAULT_RACK, Device, DeviceLink, LinkGroup, Node

if TYPE_CHECKING:
    from gpu_flows.devices.nvml_probe import DeviceSnapshot, GpuSnapshot

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # caused by a program, not by the GPU

XID_MEANINGS = {
    48: "uncorrectable memory error",
    63: "memory row remapped, needs a reset",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GPU firmware does not respond",
}


NOT_INSTALLED = ("Shared Library Not Found", "Driver Not Loaded")  # parts of NVML's messages


def find_nvml(library: str | None = None) -> str:
    """Return why NVML cannot be used on this machine and how to fix that; empty if it can."""
    devices = NvmlDevices(library=library)
    try:
        devices.nodes()
    except DeviceError as error:
        return str(error)
    finally:
        devices.close()
    return ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A device that was listed at least once, and its position."""

    device: Device
    gpu: int  # the index of its GPU in NVML's list
    instance: list[int] | None  # of a MIG slice


class NvmlDevices:
    """A DeviceSource. It starts its probe at the first call, and may be called from any thread."""

    name = "nvml"
    problem = ""

    def __init__(
        self,
        node: str | None = None,
        deadline_s: float = 2.0,
        library: str | None = None,
        *,
        start_s: float = 15.0,
        pause_s: float = 1.0,
        ignored_xids: frozenset[int] = APPLICATION_XIDS,
        probe: Probe | None = None,
        rack: str = DEFAULT_RACK,
    ) -> None:
        self._node, self._rack = node or socket.gethostname(), rack
        self._deadline_s = deadline_s
        self._ignored_xids = ignored_xids
        self._probe = probe or ProcessProbe(library, deadline_s, start_s, pause_s)
        # Of another machine, which is read through a probe, it is not known here.
        self._size = (0.0, 0) if probe else (float(psutil.cpu_count() or 0), _total_memory_mb())
        self._lock = threading.Lock()  # the probe allows one caller at a time
        self._known: dict[str, _Known] = {}
        self._faults: dict[str, str] = {}  # by device id: faults that only a reset repairs

    def nodes(self, wait_for_start: bool = True) -> list[Node]:
        """Return this machine with its devices. `wait_for_start` waits for a driver that is slow to start."""
        with self._lock:
            try:
                gpus = self._probe.read(wait_for_start)
            except ProbeError as error:
                absent = any(message in str(error) for message in NOT_INSTALLED)
                raise (NoDevices if absent else DeviceError)(str(error)) from None
            self._update(gpus)
        present = [self._known[snapshot["id"]] for gpu in gpus for snapshot in gpu["devices"]]
        if not present:
            raise NoDevices(_explain_no_devices(gpus))
        present.sort(key=lambda known: known.device.index)
        devices = tuple(known.device for known in present)
        return [Node(self._node, devices, self._rack, *self._size, _find_links(present, gpus))]

    def read(self) -> list[Reading]:
        """Return a reading of every device listed so far. One that disappears is returned as unhealthy."""
        late = f"NVML has not answered for {self._deadline_s:.1f} s"
        if not self._lock.acquire(timeout=self._deadline_s):
            return self._all_unhealthy(late)
        try:
            gpus = self._probe.read()
        except ProbeError as error:
            return self._all_unhealthy(error.reason)
        else:
            self._update(gpus)
            snapshots = {snapshot["id"]: snapshot for gpu in gpus for snapshot in gpu["devices"]}
            return [self._reading(known, snapshots.get(id), gpus) for id, known in self._known.items()]
        finally:
            self._lock.release()

    def changed_nodes(self) -> list[Node] | None:
        return None

    def close(self) -> None:
        with self._lock:
            self._probe.close()

    def _update(self, gpus: list[GpuSnapshot]) -> None:
        """Store which devices exist, and which have a new fault."""
        for index, gpu in enumerate(gpus):
            for device in gpu["devices"]:
                self._store_device(index, device)
            for event in gpu["events"]:
                if event["xid"] not in self._ignored_xids:
                    self._store_fault(index, event["instance"], _describe_xid(event["xid"]))

    def _store_device(self, gpu: int, snapshot: DeviceSnapshot) -> None:
        before = self._known.get(snapshot["id"])
        index = before.device.index if before else len(self._known)
        if before and snapshot["fault"]:  # a faulty device may not report its model and memory
            device = before.device
        else:
            device = Device(snapshot["id"], self._node, index, snapshot["model"], snapshot["memory_mb"])
        self._known[snapshot["id"]] = _Known(device, gpu, snapshot["instance"])

    def _store_fault(self, gpu: int, instance: list[int] | None, fault: str) -> None:
        for known in self._known.values():
            if known.gpu == gpu and (instance is None or known.instance in (None, instance)):
                self._faults.setdefault(known.device.id, fault)

    def _reading(self, known: _Known, snapshot: DeviceSnapshot | None, gpus: list[GpuSnapshot]) -> Reading:
        fault = self._faults.get(known.device.id, "")
        if snapshot is None:
            gpu_fault = gpus[known.gpu]["fault"] if known.gpu < len(gpus) else ""
            return _unhealthy(known, fault or gpu_fault or "gone: NVML does not list it any more")
        detail = fault or snapshot["fault"] or _describe_ecc(snapshot["ecc_errors"])
        return Reading(
            snapshot["id"],
            utilization=snapshot["utilization"],
            memory_used_mb=snapshot["memory_used_mb"],
            power_w=snapshot["power_w"],
            temperature_c=snapshot["temperature_c"],
            processes=tuple(snapshot["processes"]),
            process_memory_mb=tuple(snapshot.get("process_memory_mb", ())),
            ecc_errors=snapshot["ecc_errors"],
            healthy=not detail,
            detail=detail,
        )

    def _all_unhealthy(self, reason: str) -> list[Reading]:
        return [_unhealthy(known, self._faults.get(id, reason)) for id, known in list(self._known.items())]


def _find_links(devices: list[_Known], gpus: list[GpuSnapshot]) -> tuple[LinkGroup, ...]:
    """Return how the devices are linked, as far as it is known."""
    pairs = ((pair, _link(*pair, gpus)) for pair in combinations(devices, 2))
    return group_pairs({(one.device.index, two.device.index): link for (one, two), link in pairs if link})


def _link(one: _Known, other: _Known, gpus: list[GpuSnapshot]) -> DeviceLink | None:
    """Return the closest link of two devices. Slices of a GPU share its connection to the machine, and NVLink
    does not serve slices."""
    if one.gpu == other.gpu:
        return DeviceLink.SWITCH
    gpu = gpus[one.gpu]
    if other.gpu in gpu["nvlinks"] and not one.instance and not other.instance:
        return DeviceLink.NVLINK
    path = dict(enumerate(gpu["paths"])).get(other.gpu)
    return DeviceLink[path.upper()] if path else None


def _total_memory_mb() -> int:
    return int(psutil.virtual_memory().total) // 2**20


def _unhealthy(known: _Known, detail: str) -> Reading:
    return Reading(known.device.id, healthy=False, detail=detail)


def _describe_xid(number: int | None) -> str:
    if number is None:
        return "uncorrectable memory error (double-bit ECC)"
    meaning = XID_MEANINGS.get(number, "see NVIDIA's list of Xid errors")
    return f"Xid {number}: {meaning}"


def _describe_ecc(errors: int | None) -> str:
    return f"{errors} uncorrectable memory errors (ECC) since its last reset" if errors else ""


def _explain_no_devices(gpus: list[GpuSnapshot]) -> str:
    faults = [f"GPU {index}: {gpu['fault']}" for index, gpu in enumerate(gpus) if gpu["fault"]]
    if faults:
        return f"No GPU can be used ({'; '.join(faults)}). Check `nvidia-smi` and `dmesg`."
    if gpus:
        return "The GPUs are in MIG mode without a slice. Create some with `nvidia-smi mig -cgi ... -C`."
    return "NVML lists no GPU. Start a container with `--gpus all`; on a host check `nvidia-smi`."

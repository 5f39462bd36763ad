"""The GPUs of this machine, through NVML, and the rules by which one of them counts as sick.

The rules are those of NVIDIA's own device plugin for Kubernetes and of DCGM:

- a critical Xid makes a device unhealthy, unless it is one that a faulty program causes; it stays so
  until this source is opened again, which is what one does after resetting the GPU
- so does an uncorrectable memory error, until a reset sets the device's count to zero
- so does a device that is lost, gone from NVML's list, or not read within the deadline, until it is back

A value that a device does not support is None and no fault. Every NVML call happens in a child
process (`nvml_probe.py`), so a driver that hangs costs the caller at most the deadline.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpu_flows.devices.base import DeviceError, NoDevices, Reading
from gpu_flows.devices.process_probe import ProbeError, ProcessProbe
from gpu_flows.schedulers.model import Device, Node

if TYPE_CHECKING:
    from gpu_flows.devices.nvml_probe import DeviceSnapshot, GpuSnapshot

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # the program's fault; the GPU is well

XID_MEANINGS = {
    48: "uncorrectable memory error",
    63: "memory row remapped, needs a reset",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GPU firmware does not answer",
}


NOT_THERE = ("Shared Library Not Found", "Driver Not Loaded")  # in NVML's own words


def find_nvml(library: str | None = None) -> str:
    """Why NVML is of no use on this machine, with a way to fix it; empty when it is."""
    devices = NvmlDevices(library=library)
    try:
        devices.nodes()
    except DeviceError as error:
        return str(error)
    finally:
        devices.close()
    return ""


class Probe(Protocol):
    """Whoever asks NVML: a child process, or a container on another machine."""

    def look(self, patient: bool = False) -> list[GpuSnapshot]:
        """All GPUs as NVML shows them now; raises ProbeError."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Known:
    """A device that was seen at least once, and where it sits."""

    device: Device
    gpu: int  # the place of its GPU in NVML's list
    instance: list[int] | None  # of a MIG slice


class NvmlDevices:
    """A DeviceSource. Starts its child process at the first call; may be called from any thread."""

    name = "nvml"
    trouble = ""

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
    ) -> None:
        self._node = node or socket.gethostname()
        self._deadline_s = deadline_s
        self._ignored_xids = ignored_xids
        self._child = probe or ProcessProbe(library, deadline_s, start_s, pause_s)
        self._lock = threading.Lock()  # one question at a time
        self._known: dict[str, _Known] = {}
        self._sick: dict[str, str] = {}  # by device: the fault that only a reset heals

    def nodes(self, patient: bool = True) -> list[Node]:
        """This machine with its devices. Waits, if patient, for a driver that is slow to start."""
        with self._lock:
            try:
                gpus = self._child.look(patient)
            except ProbeError as trouble:
                absent = any(words in str(trouble) for words in NOT_THERE)
                raise (NoDevices if absent else DeviceError)(str(trouble)) from None
            self._learn(gpus)
        present = [self._known[look["id"]].device for gpu in gpus for look in gpu["devices"]]
        if not present:
            raise NoDevices(_no_device(gpus))
        return [Node(self._node, tuple(sorted(present, key=lambda device: device.index)))]

    def read(self) -> list[Reading]:
        """A reading for every device ever seen, so that one which disappears is told as gone."""
        late = f"NVML has not answered for {self._deadline_s:.1f} s"
        if not self._lock.acquire(timeout=self._deadline_s):
            return self._all_unhealthy(late)
        try:
            gpus = self._child.look()
        except ProbeError as trouble:
            return self._all_unhealthy(trouble.reason)
        else:
            self._learn(gpus)
            looks = {look["id"]: look for gpu in gpus for look in gpu["devices"]}
            return [self._reading(known, looks.get(id), gpus) for id, known in self._known.items()]
        finally:
            self._lock.release()

    def news(self) -> list[Node] | None:
        return None

    def close(self) -> None:
        with self._lock:
            self._child.close()

    def _learn(self, gpus: list[GpuSnapshot]) -> None:
        """Which devices there are, and which have just fallen sick."""
        for gpu, look in enumerate(gpus):
            for device in look["devices"]:
                self._remember(gpu, device)
            for event in look["events"]:
                if event["xid"] not in self._ignored_xids:
                    self._mark(gpu, event["instance"], _xid(event["xid"]))

    def _remember(self, gpu: int, look: DeviceSnapshot) -> None:
        before = self._known.get(look["id"])
        index = before.device.index if before else len(self._known)
        if before and look["fault"]:  # a faulty device tells less of itself than it once did
            device = before.device
        else:
            device = Device(look["id"], self._node, index, look["model"], look["memory_mb"])
        self._known[look["id"]] = _Known(device, gpu, look["instance"])

    def _mark(self, gpu: int, instance: list[int] | None, fault: str) -> None:
        for known in self._known.values():
            if known.gpu == gpu and (instance is None or known.instance in (None, instance)):
                self._sick.setdefault(known.device.id, fault)

    def _reading(self, known: _Known, look: DeviceSnapshot | None, gpus: list[GpuSnapshot]) -> Reading:
        sick = self._sick.get(known.device.id, "")
        if look is None:
            lost = gpus[known.gpu]["fault"] if known.gpu < len(gpus) else ""
            return _unhealthy(known, sick or lost or "gone: NVML does not list it any more")
        detail = sick or look["fault"] or _ecc(look["ecc_errors"])
        return Reading(
            look["id"],
            utilization=look["utilization"],
            memory_used_mb=look["memory_used_mb"],
            power_w=look["power_w"],
            temperature_c=look["temperature_c"],
            processes=tuple(look["processes"]),
            ecc_errors=look["ecc_errors"],
            healthy=not detail,
            detail=detail,
        )

    def _all_unhealthy(self, reason: str) -> list[Reading]:
        return [_unhealthy(known, self._sick.get(id, reason)) for id, known in list(self._known.items())]


def _unhealthy(known: _Known, detail: str) -> Reading:
    return Reading(known.device.id, healthy=False, detail=detail)


def _xid(number: int | None) -> str:
    if number is None:
        return "uncorrectable memory error (double-bit ECC)"
    meaning = XID_MEANINGS.get(number, "see NVIDIA's list of Xid errors")
    return f"Xid {number}: {meaning}"


def _ecc(errors: int | None) -> str:
    return f"{errors} uncorrectable memory errors (ECC) since its last reset" if errors else ""


def _no_device(gpus: list[GpuSnapshot]) -> str:
    faults = [f"GPU {number}: {look['fault']}" for number, look in enumerate(gpus) if look["fault"]]
    if faults:
        return f"No GPU can be used ({'; '.join(faults)}). Check `nvidia-smi` and `dmesg`."
    if gpus:
        return "The GPUs are in MIG mode without a slice. Make some with `nvidia-smi mig -cgi ... -C`."
    return "NVML lists no GPU. Start a container with `--gpus all`; on a host check `nvidia-smi`."

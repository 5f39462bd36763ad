"""A script that reads NVML in a process of its own, so that a call that never returns blocks no other
process.

`process_probe` runs this file as a plain script. It imports only the standard library and pynvml, and so
starts in a tenth of a second. One byte on stdin requests a snapshot of all GPUs, which is printed as one
line of JSON. The script ends when its stdin is closed, because its parent has then ended.

`container_probe` runs it with `--every SECONDS --for SECONDS`: it prints snapshots at this interval without
requests, and ends after the given time, so that it does not run forever without a worker.

It reports only what NVML returns. `nvml` decides whether a device is healthy.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypedDict

import pynvml as nvml

MIB = 1024 * 1024
ANY_INSTANCE = 0xFFFFFFFF  # NVML's value for "the whole GPU, not one slice"
WATCHED_EVENTS = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError

# Errors that mean: the value is not available for this device, driver or user.
UNAVAILABLE = {
    nvml.NVML_ERROR_NOT_SUPPORTED,
    nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    nvml.NVML_ERROR_INVALID_ARGUMENT,  # some drivers return this for a MIG slice
    nvml.NVML_ERROR_INSUFFICIENT_SIZE,  # the list of processes grew while it was read
    nvml.NVML_ERROR_NO_PERMISSION,
    nvml.NVML_ERROR_NO_DATA,
}

FIXES = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "Install the NVIDIA driver; start a container with `--gpus all`.",
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: "Load the driver (`modprobe nvidia`) and check `nvidia-smi`.",
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The driver was updated while loaded: reboot this machine.",
    nvml.NVML_ERROR_NO_PERMISSION: "Let this user read and write /dev/nvidia* (often group `video`).",
    nvml.NVML_ERROR_UNKNOWN: "Check `nvidia-smi`; a container that lost its GPUs needs a restart.",
}
Path = Literal["switch", "numa"]
OTHER_FIX = "Check `nvidia-smi` and `dmesg`."


# What two GPUs have in common if NVML finds this common ancestor of them.
PATHS: dict[int, Path] = {
    nvml.NVML_TOPOLOGY_INTERNAL: "switch",  # they are on one board
    nvml.NVML_TOPOLOGY_SINGLE: "switch",
    nvml.NVML_TOPOLOGY_MULTIPLE: "switch",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "numa",
    nvml.NVML_TOPOLOGY_NODE: "numa",
}


class Event(TypedDict):
    """A fault that NVML has reported as an event."""

    xid: int | None  # None: an uncorrectable memory error
    instance: list[int] | None  # the MIG slice; None: the whole GPU


class DeviceSnapshot(TypedDict):
    """One device: a GPU, or a MIG slice of one."""

    id: str
    model: str
    memory_mb: int
    instance: list[int] | None
    utilization: float | None
    memory_used_mb: float | None
    power_w: float | None
    temperature_c: float | None
    ecc_errors: int | None
    processes: list[int]
    process_memory_mb: list[float | None]  # of each of these processes
    fault: str


class GpuSnapshot(TypedDict):
    """One GPU of NVML's list. In MIG mode its slices are its devices."""

    fault: str  # why its devices cannot be listed
    events: list[Event]
    devices: list[DeviceSnapshot]
    nvlinks: list[int]  # the GPUs that it reaches over NVLink, by index
    paths: list[Path | None]  # what it shares with each GPU on the way to it; None: nothing, or unknown


Topology = tuple[list[int], list[Path | None]]  # of one GPU: `nvlinks` and `paths` of its snapshot


class Answer(TypedDict, total=False):
    """Either `gpus`, or `error` with its `fix`; after an error the script ends."""

    gpus: list[GpuSnapshot]
    error: str
    fix: str


def read_value(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the value of an NVML function, or None if it is not available."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if error.value in UNAVAILABLE:
            return None
        raise


class Gpus:
    """The GPUs of this machine. Each has its own event set, so that a lost GPU does not block the others."""

    def __init__(self) -> None:
        nvml.nvmlInit()
        self._event_sets: dict[int, Any] = {}
        self._topology: list[Topology] = []  # read once: it changes only with the machine

    def read(self) -> Answer:
        count = nvml.nvmlDeviceGetCount()
        if len(self._topology) != count:
            self._topology = read_topology(count)
        return {"gpus": [self._read_gpu(index) for index in range(count)]}

    def _read_gpu(self, index: int) -> GpuSnapshot:
        nvlinks, paths = self._topology[index]
        snapshot: GpuSnapshot = {
            "fault": "",
            "events": [],
            "devices": [],
            "nvlinks": nvlinks,
            "paths": paths,
        }
        try:
            for event in self._events(index):  # first: the events may state why a GPU was lost
                snapshot["events"].append(event)
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            self._register_events(index, gpu)
            snapshot["devices"] = [
                read_device(device, gpu, instance) for device, instance in list_devices(gpu)
            ]
        except nvml.NVMLError as error:
            snapshot["fault"] = str(error)
        return snapshot

    def _register_events(self, index: int, gpu: Any) -> None:
        if index in self._event_sets:
            return
        event_set = nvml.nvmlEventSetCreate()
        supported = read_value(nvml.nvmlDeviceGetSupportedEventTypes, gpu) or 0
        read_value(nvml.nvmlDeviceRegisterEvents, gpu, WATCHED_EVENTS & supported, event_set)
        self._event_sets[index] = event_set

    def _events(self, index: int) -> Iterator[Event]:
        """Yield the events since the last snapshot."""
        while index in self._event_sets:
            try:
                event = nvml.nvmlEventSetWait(self._event_sets[index], 0)
            except nvml.NVMLError_Timeout:
                return
            instance = [event.gpuInstanceId, event.computeInstanceId]
            yield {
                "xid": event.eventData if event.eventType == nvml.nvmlEventTypeXidCriticalError else None,
                "instance": None if ANY_INSTANCE in instance else instance,
            }


def list_devices(gpu: Any) -> Iterator[tuple[Any, list[int] | None]]:
    """Yield the handles of the devices that jobs can use: the GPU itself, or its slices in MIG mode."""
    current_mode, _pending = read_value(nvml.nvmlDeviceGetMigMode, gpu) or (
        nvml.NVML_DEVICE_MIG_DISABLE,
        None,
    )
    if current_mode != nvml.NVML_DEVICE_MIG_ENABLE:
        yield gpu, None
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except nvml.NVMLError_NotFound:
            continue  # a free place for a slice
        yield mig, [nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)]


def read_device(device: Any, gpu: Any, instance: list[int] | None) -> DeviceSnapshot:
    snapshot: DeviceSnapshot = {
        "id": nvml.nvmlDeviceGetUUID(device),
        "model": "GPU",
        "memory_mb": 0,
        "instance": instance,
        "utilization": None,
        "memory_used_mb": None,
        "power_w": None,
        "temperature_c": None,
        "ecc_errors": None,
        "processes": [],
        "process_memory_mb": [],
        "fault": "",
    }
    try:
        snapshot["model"] = read_value(nvml.nvmlDeviceGetName, device) or "GPU"
        if memory := read_value(nvml.nvmlDeviceGetMemoryInfo, device):
            snapshot["memory_mb"] = memory.total // MIB
            snapshot["memory_used_mb"] = memory.used / MIB
        if rates := read_value(nvml.nvmlDeviceGetUtilizationRates, device):
            snapshot["utilization"] = float(rates.gpu)
        if (milliwatts := read_value(nvml.nvmlDeviceGetPowerUsage, device)) is not None:
            snapshot["power_w"] = milliwatts / 1000
        snapshot["temperature_c"] = read_temperature(gpu)  # a slice has no sensor of its own
        snapshot["ecc_errors"] = read_value(
            nvml.nvmlDeviceGetTotalEccErrors,
            device,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        processes = read_value(nvml.nvmlDeviceGetComputeRunningProcesses, device) or []
        snapshot["processes"] = [process.pid for process in processes]
        snapshot["process_memory_mb"] = [
            None if process.usedGpuMemory is None else process.usedGpuMemory / MIB for process in processes
        ]
    except nvml.NVMLError as error:
        snapshot["fault"] = str(error)
    return snapshot


def read_temperature(gpu: Any) -> float | None:
    celsius = read_value(nvml.nvmlDeviceGetTemperatureV, gpu, nvml.NVML_TEMPERATURE_GPU)
    if celsius is None:  # older drivers do not have that function
        celsius = read_value(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
    return None if celsius is None else float(celsius)


def read_topology(count: int) -> list[Topology]:
    """Return how each GPU is connected to the others. What the driver does not tell is unknown."""
    gpus = [read_if_known(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    topology: list[Topology] = []
    for gpu in gpus:
        others = [(index, other) for index, other in enumerate(gpus) if gpu and other and other is not gpu]
        paths = {index: find_path(gpu, other) for index, other in others}
        nvlinks = [index for index, other in others if has_nvlink(gpu, other)]
        topology.append((nvlinks, [paths.get(index) for index in range(count)]))
    return topology


def has_nvlink(one: Any, other: Any) -> bool:
    """Whether the two can read each other's memory over NVLink, directly or through an NVSwitch."""
    status = read_if_known(nvml.nvmlDeviceGetP2PStatus, one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def find_path(one: Any, other: Any) -> Path | None:
    """Return what the two have in common; by their NUMA nodes if the driver does not know their ancestor."""
    level = read_if_known(nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
    if level is not None:
        return PATHS.get(level)
    near = read_numa_nodes(one)
    return "numa" if near and near == read_numa_nodes(other) else None


def read_numa_nodes(gpu: Any) -> list[int]:
    """Return the NUMA nodes whose memory is nearest to the GPU, as bits; empty if that is unknown."""
    nodes = read_if_known(nvml.nvmlDeviceGetMemoryAffinity, gpu, 1, nvml.NVML_AFFINITY_SCOPE_NODE)
    return list(nodes or [])


def read_if_known(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the value of an NVML function, or None if it fails: the topology is not worth a fault."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Read requests from stdin. This runs in its own thread, to end the script even while NVML hangs."""
    while byte := os.read(0, 1):
        requests.put(byte)
    os._exit(0)


def make_requests(requests: queue.SimpleQueue[bytes], every_s: float, for_s: float) -> None:
    """Make requests at an interval, and end the script after `for_s`."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        requests.put(b"?")
        time.sleep(every_s)
    os._exit(0)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a driver library prints must not mix with the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    at_interval = sys.argv[1:2] == ["--every"]
    if at_interval:
        arguments = (requests, float(sys.argv[2]), float(sys.argv[4]))
        threading.Thread(target=make_requests, args=arguments, daemon=True).start()
    else:
        threading.Thread(target=read_requests, args=(requests,), daemon=True).start()

    def send(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        if len(sys.argv) > 1 and not at_interval:
            # pynvml finds its library by name, and then gets the one that is already loaded.
            ctypes.CDLL(sys.argv[1])
        gpus = Gpus()
        while requests.get():
            send(gpus.read())
    except nvml.NVMLError as error:
        send({"error": str(error), "fix": FIXES.get(error.value, OTHER_FIX)})
    except Exception as error:
        send({"error": f"{type(error).__name__}: {error}", "fix": OTHER_FIX})


if __name__ == "__main__":
    main()

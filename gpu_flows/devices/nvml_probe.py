"""Asks NVML, in a process of its own, so that a call which never returns hurts nobody else.

`gpu_flows.devices.nvml` runs this file as a plain script, so it imports nothing but the standard
library and pynvml and starts in a tenth of a second. One byte on stdin asks for one look at all
GPUs; the look goes out as one line of JSON. When stdin closes the owner is gone, and so is the probe.

In a container nobody asks: `--every SECONDS --for SECONDS` looks by itself, and ends by itself, so that
a sampler whose owner is gone does not stay for ever.

It tells facts only. What makes a device unhealthy is for the reader to say.
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
from typing import Any, TypedDict

import pynvml as nvml

MIB = 1024 * 1024
ANY_INSTANCE = 0xFFFFFFFF  # NVML's word for "not one slice, the whole GPU"
WATCHED_EVENTS = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError

# Errors that only mean: this device, this driver or this user does not get that value.
UNTOLD = {
    nvml.NVML_ERROR_NOT_SUPPORTED,
    nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    nvml.NVML_ERROR_INVALID_ARGUMENT,  # some drivers say this of a MIG slice
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
OTHER_FIX = "Check `nvidia-smi` and `dmesg`."


class Event(TypedDict):
    """A fault NVML told about by itself."""

    xid: int | None  # None: an uncorrectable memory error
    instance: list[int] | None  # the MIG slice that is meant; None: the whole GPU


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
    fault: str


class GpuSnapshot(TypedDict):
    """One GPU, by its place in NVML's list. In MIG mode its slices are its devices."""

    fault: str  # why no device of it can be told
    events: list[Event]
    devices: list[DeviceSnapshot]


class Answer(TypedDict, total=False):
    """Either `gpus`, or `error` with its `fix`; after an error the probe ends."""

    gpus: list[GpuSnapshot]
    error: str
    fix: str


def told(ask: Callable[..., Any], *arguments: Any) -> Any:
    """What NVML answers, or None where it does not tell."""
    try:
        return ask(*arguments)
    except nvml.NVMLError as error:
        if error.value in UNTOLD:
            return None
        raise


class Gpus:
    """The GPUs of this machine, with one event set each, so that a lost one silences no other."""

    def __init__(self) -> None:
        nvml.nvmlInit()
        self._event_sets: dict[int, Any] = {}

    def look(self) -> Answer:
        return {"gpus": [self._look_at(index) for index in range(nvml.nvmlDeviceGetCount())]}

    def _look_at(self, index: int) -> GpuSnapshot:
        look: GpuSnapshot = {"fault": "", "events": [], "devices": []}
        try:
            for event in self._events(index):  # first: a lost GPU may have told why it went
                look["events"].append(event)
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            self._watch(index, gpu)
            look["devices"] = [look_at(device, gpu, instance) for device, instance in devices_of(gpu)]
        except nvml.NVMLError as error:
            look["fault"] = str(error)
        return look

    def _watch(self, index: int, gpu: Any) -> None:
        if index in self._event_sets:
            return
        event_set = nvml.nvmlEventSetCreate()
        supported = told(nvml.nvmlDeviceGetSupportedEventTypes, gpu) or 0
        told(nvml.nvmlDeviceRegisterEvents, gpu, WATCHED_EVENTS & supported, event_set)
        self._event_sets[index] = event_set

    def _events(self, index: int) -> Iterator[Event]:
        """What happened since the last look."""
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


def devices_of(gpu: Any) -> Iterator[tuple[Any, list[int] | None]]:
    """The handles that jobs can be given: the GPU itself, or its slices when it is in MIG mode."""
    current_mode, _pending = told(nvml.nvmlDeviceGetMigMode, gpu) or (nvml.NVML_DEVICE_MIG_DISABLE, None)
    if current_mode != nvml.NVML_DEVICE_MIG_ENABLE:
        yield gpu, None
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except nvml.NVMLError_NotFound:
            continue  # room for a slice that nobody made
        yield mig, [nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)]


def look_at(device: Any, gpu: Any, instance: list[int] | None) -> DeviceSnapshot:
    look: DeviceSnapshot = {
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
        "fault": "",
    }
    try:
        look["model"] = told(nvml.nvmlDeviceGetName, device) or "GPU"
        if memory := told(nvml.nvmlDeviceGetMemoryInfo, device):
            look["memory_mb"] = memory.total // MIB
            look["memory_used_mb"] = memory.used / MIB
        if rates := told(nvml.nvmlDeviceGetUtilizationRates, device):
            look["utilization"] = float(rates.gpu)
        if (milliwatts := told(nvml.nvmlDeviceGetPowerUsage, device)) is not None:
            look["power_w"] = milliwatts / 1000
        look["temperature_c"] = temperature_of(gpu)  # a slice has no sensor of its own
        look["ecc_errors"] = told(
            nvml.nvmlDeviceGetTotalEccErrors,
            device,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        processes = told(nvml.nvmlDeviceGetComputeRunningProcesses, device) or []
        look["processes"] = [process.pid for process in processes]
    except nvml.NVMLError as error:
        look["fault"] = str(error)
    return look


def temperature_of(gpu: Any) -> float | None:
    celsius = told(nvml.nvmlDeviceGetTemperatureV, gpu, nvml.NVML_TEMPERATURE_GPU)
    if celsius is None:  # drivers from before this call
        celsius = told(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
    return None if celsius is None else float(celsius)


def listen(asked: queue.SimpleQueue[bytes]) -> None:
    """Runs beside the looks, so the probe ends with its owner even while NVML hangs."""
    while byte := os.read(0, 1):
        asked.put(byte)
    os._exit(0)


def keep_asking(asked: queue.SimpleQueue[bytes], every_s: float, for_s: float) -> None:
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        asked.put(b"?")
        time.sleep(every_s)
    os._exit(0)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a driver library prints does not get between the answers
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    alone = sys.argv[1:2] == ["--every"]
    if alone:
        pace = (asked, float(sys.argv[2]), float(sys.argv[4]))
        threading.Thread(target=keep_asking, args=pace, daemon=True).start()
    else:
        threading.Thread(target=listen, args=(asked,), daemon=True).start()

    def answer(what: Answer) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        if len(sys.argv) > 1 and not alone:  # once loaded, pynvml gets it when it asks by name
            ctypes.CDLL(sys.argv[1])
        gpus = Gpus()
        while asked.get():
            answer(gpus.look())
    except nvml.NVMLError as error:
        answer({"error": str(error), "fix": FIXES.get(error.value, OTHER_FIX)})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}", "fix": OTHER_FIX})


if __name__ == "__main__":
    main()

"""NVML hangs, crashes, fails or is missing, and only its probe is affected."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from nvml.helpers import by_id, children, end_probe, eventually
from nvml.standin import DRIVER_NOT_LOADED, UNKNOWN_ERROR, XID, StandIn

from gpu_flows.devices import process_probe
from gpu_flows.devices.base import DeviceError, Reading
from gpu_flows.devices.nvml import NvmlDevices, find_nvml
from gpu_flows.schedulers.model import Node

pytest_plugins = ["nvml.fixtures"]

ROOT = Path(__file__).parent.parent


def test_a_hanging_call_gives_unhealthy_readings_and_recovers(
    nvml: StandIn, hasty_devices: NvmlDevices
) -> None:
    nvml.add_gpu()
    nvml.add_gpu()
    hasty_devices.nodes()

    nvml.set(hang="nvmlDeviceGetUtilizationRates")
    for _ in range(3):  # also while the next probe, and the one after it, hang in turn
        assert hasty_devices.read() == [
            Reading(id, healthy=False, detail="NVML has not answered for 0.5 s") for id in ("GPU-0", "GPU-1")
        ]

    nvml.unset("hang")
    eventually(lambda: all(reading.healthy for reading in hasty_devices.read()))


def test_a_hang_does_not_hide_a_known_fault(nvml: StandIn, hasty_devices: NvmlDevices) -> None:
    nvml.add_gpu()
    nvml.add_gpu()
    hasty_devices.nodes()
    nvml.add_event(1, XID, 79)
    eventually(lambda: not by_id(hasty_devices)["GPU-1"].healthy)

    nvml.set(hang="nvmlDeviceGetCount_v2")

    readings = by_id(hasty_devices)
    assert readings["GPU-0"].detail.startswith("NVML has not answered")
    assert readings["GPU-1"].detail.startswith("Xid 79")


def test_a_hang_while_nvml_starts_is_a_device_error(nvml: StandIn) -> None:
    nvml.add_gpu()
    nvml.set(hang="nvmlInitWithFlags")
    source = NvmlDevices(deadline_s=0.1, library=nvml.library, start_s=0.3)

    with pytest.raises(DeviceError, match=r"NVML has not answered for 0\.3 s\. Check `nvidia-smi`"):
        source.nodes()
    source.close()


def test_readings_do_not_wait_for_a_listing_that_hangs(nvml: StandIn, hasty_devices: NvmlDevices) -> None:
    nvml.add_gpu()
    hasty_devices.nodes()
    nvml.set(hang="nvmlInitWithFlags")
    end_probe()
    hasty_devices.read()  # detects that it has ended
    assert hasty_devices.read()[0].detail == "NVML has not answered for 0.5 s"  # the next one hangs

    listed: list[Node] = []
    listing = threading.Thread(target=lambda: listed.extend(hasty_devices.nodes()))
    listing.start()
    assert not hasty_devices.read()[0].healthy
    assert listing.is_alive(), "the reading came while the listing was still waiting"

    nvml.unset("hang")
    listing.join()
    assert [device.id for device in listed[0].devices] == ["GPU-0"]


def test_no_second_probe_starts_while_one_cannot_be_killed(
    nvml: StandIn, hasty_devices: NvmlDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add_gpu()
    hasty_devices.nodes()
    [probe] = children()
    nvml.set(hang="nvmlDeviceGetName")

    with monkeypatch.context() as stuck_in_the_driver:
        stuck_in_the_driver.setattr("gpu_flows.devices.process_probe._Process.kill", lambda self: None)
        for _ in range(5):
            assert hasty_devices.read()[0].detail == "NVML has not answered for 0.5 s"
        assert children() == [probe]

    probe.kill()
    nvml.unset("hang")
    eventually(lambda: hasty_devices.read()[0].healthy)


def test_pauses_between_probes_double_until_one_answers(
    nvml: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, starts = 1000.0, 0
    start = process_probe._Process

    def counted(command: list[str]) -> process_probe._Process:
        nonlocal starts
        starts += 1
        return start(command)

    monkeypatch.setattr(process_probe, "_Process", counted)
    monkeypatch.setattr(process_probe, "time", SimpleNamespace(monotonic=lambda: now))
    source = NvmlDevices(library=nvml.library, deadline_s=20.0, pause_s=1.0)

    def starts_after(seconds: float) -> int:
        nonlocal now
        eventually(lambda: not children())
        last = source._probe._killed  # type: ignore[attr-defined]
        eventually(lambda: last is None or not last.is_alive())  # ended with all its threads
        now += seconds
        source.read()
        return starts

    nvml.add_gpu()
    nvml.set(init=DRIVER_NOT_LOADED)
    assert [starts_after(0), starts_after(0.9), starts_after(0.2)] == [1, 1, 2]
    assert [starts_after(1.9), starts_after(0.2)] == [2, 3]
    nvml.unset("init")
    assert [starts_after(3.9), starts_after(0.2)] == [3, 4]  # this process answers
    end_probe()
    assert [starts_after(0), starts_after(0.9), starts_after(0.2)] == [4, 4, 5]
    source.close()


def test_a_crash_inside_the_library_ends_only_the_probe(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.nodes()

    nvml.set(crash="nvmlDeviceGetPowerUsage")
    assert devices.read() == [Reading("GPU-0", healthy=False, detail="NVML crashed its probe (signal 6)")]

    nvml.unset("crash")
    eventually(lambda: devices.read()[0].healthy)


def test_a_driver_that_is_not_loaded_is_an_error_with_a_fix(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    nvml.set(init=DRIVER_NOT_LOADED)

    with pytest.raises(DeviceError, match=r"NVML failed: Driver Not Loaded\. Load the driver"):
        devices.nodes()
    assert devices.read() == []

    nvml.unset("init")
    eventually(lambda: devices.read() and devices.read()[0].healthy)


def test_a_library_that_fails_later_makes_all_devices_unhealthy(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.nodes()
    nvml.set(init=UNKNOWN_ERROR)
    end_probe()

    assert devices.read()[0].detail == "NVML crashed its probe (signal 9)"
    eventually(lambda: devices.read()[0].detail == "NVML failed: Unknown Error")


def test_find_nvml_returns_the_reason_or_nothing(nvml: StandIn, tmp_path: Path) -> None:
    assert "NVML lists no GPU" in find_nvml(nvml.library)
    nvml.add_gpu()
    assert find_nvml(nvml.library) == ""
    assert "cannot open shared object file" in find_nvml(str(tmp_path / "none.so"))


def test_without_a_library_the_reason_is_the_driver(nvml: StandIn, tmp_path: Path) -> None:
    # The loader searches this folder first, and its libnvidia-ml is not a library.
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    finding = subprocess.run(
        [sys.executable, "-c", "from gpu_flows.devices.nvml import find_nvml; print(find_nvml())"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "NVML Shared Library Not Found. Install the NVIDIA driver" in finding.stdout


# Processes of the probe


def test_closing_ends_the_probe_and_later_calls_report_it(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.nodes()

    devices.close()

    assert children() == []
    assert devices.read() == [Reading("GPU-0", healthy=False, detail="the source of devices is closed")]
    with pytest.raises(DeviceError, match="source of devices is closed"):
        devices.nodes()


@pytest.mark.parametrize("hanging", [False, True])
def test_the_probe_ends_with_its_parent_even_while_nvml_hangs(nvml: StandIn, hanging: bool) -> None:
    nvml.add_gpu()
    if hanging:
        nvml.set(hang="nvmlDeviceGetUUID")
    program = (
        "import sys; from gpu_flows.devices.nvml import NvmlDevices\n"
        f"source = NvmlDevices(library={nvml.library!r}, deadline_s=0.1, start_s=600)\n"
        "source.read(); print(source._probe._process._popen.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    probe = psutil.Process(int(parent.stdout.readline()))
    assert probe.is_running()

    parent.kill()
    parent.communicate()

    eventually(lambda: not probe.is_running() or probe.status() == psutil.STATUS_ZOMBIE)


def test_the_probe_script_imports_neither_gpu_flows_nor_prefect() -> None:
    probe = ROOT / "gpu_flows" / "devices" / "nvml_probe.py"
    listing = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='probe'); "
        "print([name for name in sys.modules if name.split('.')[0] in ('gpu_flows', 'prefect', 'torch')])"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", listing, str(probe)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"

"""NVML as a source of devices: the real pynvml bindings over a compiled stand-in library."""

from __future__ import annotations

import pytest
from nvml.helpers import by_id, children, end_probe, eventually
from nvml.standin import DOUBLE_BIT_ECC, GPU_IS_LOST, NO_PERMISSION, UNKNOWN_ERROR, XID, StandIn

from gpu_flows.devices.base import DeviceError, Reading
from gpu_flows.devices.nvml import APPLICATION_XIDS, NvmlDevices
from gpu_flows.schedulers.model import Device

pytest_plugins = ["nvml.fixtures"]

# Listing and reading


def test_devices_are_listed_with_model_memory_and_uuid(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(uuid="GPU-a", name="NVIDIA A100", memory="40960 3")
    nvml.add_gpu(uuid="GPU-b", name="NVIDIA T4", memory="15360 3")

    [node] = devices.nodes()

    assert node.name == "box"
    assert node.devices == (
        Device("GPU-a", "box", 0, "NVIDIA A100", 40960),
        Device("GPU-b", "box", 1, "NVIDIA T4", 15360),
    )


def test_a_reading_has_every_value_in_our_units(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(memory="81920 1024", utilization=37, power=250500, temperature=54, processes="101 102/512")

    assert devices.read() == [
        Reading(
            "GPU-0",
            utilization=37.0,
            memory_used_mb=1024.0,
            power_w=250.5,
            temperature_c=54.0,
            processes=(101, 102),
            process_memory_mb=(None, 512.0),
            ecc_errors=0,
        )
    ]


def test_readings_follow_the_device_with_one_probe_process(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(utilization=10)
    assert by_id(devices)["GPU-0"].utilization == 10
    [probe] = children()

    nvml.set({"gpu0.utilization": 90})

    assert by_id(devices)["GPU-0"].utilization == 90
    assert children() == [probe]


def test_an_unsupported_value_is_none_and_not_a_fault(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    for field in ("memory", "utilization", "power", "temperature", "ecc", "processes", "events"):
        nvml.unset(f"gpu0.{field}")

    assert devices.read() == [Reading("GPU-0")]
    assert devices.nodes()[0].devices[0].memory_mb == 0


def test_the_temperature_of_older_drivers_comes_from_an_older_function(
    nvml: StandIn, devices: NvmlDevices
) -> None:
    nvml.add_gpu(old_temperature=61)
    nvml.unset("gpu0.temperature")

    assert by_id(devices)["GPU-0"].temperature_c == 61


def test_the_devices_of_a_gpu_in_mig_mode_are_its_slices(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(temperature=48)
    nvml.add_slice(0, 0, uuid="MIG-small", memory="9984 12")
    nvml.add_slice(0, 4, uuid="MIG-large", memory="40192 700", name="NVIDIA H100 MIG 4g.40gb")
    nvml.add_gpu(uuid="GPU-whole", mig=0)

    [node] = devices.nodes()
    readings = by_id(devices)

    assert [(device.id, device.index, device.memory_mb) for device in node.devices] == [
        ("MIG-small", 0, 9984),
        ("MIG-large", 1, 40192),
        ("GPU-whole", 2, 81920),
    ]
    assert readings["MIG-large"] == Reading("MIG-large", memory_used_mb=700.0, temperature_c=48.0)
    assert readings.keys() == {"MIG-small", "MIG-large", "GPU-whole"}


def test_mig_mode_without_slices_is_an_error_with_a_fix(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(mig=1)

    with pytest.raises(DeviceError, match="MIG mode without a slice"):
        devices.nodes()


# Health


def test_a_critical_xid_makes_its_device_unhealthy_until_reopened(
    nvml: StandIn, devices: NvmlDevices
) -> None:
    nvml.add_gpu()
    nvml.add_gpu()
    assert all(reading.healthy for reading in devices.read())

    nvml.add_event(1, XID, 79)

    for _ in range(2):
        readings = by_id(devices)
        assert readings["GPU-0"].healthy
        assert not readings["GPU-1"].healthy
        assert readings["GPU-1"].detail == "Xid 79: GPU has fallen off the bus"
        assert readings["GPU-1"].utilization == 37


def test_xids_that_programs_cause_are_ignored(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.read()

    for xid in APPLICATION_XIDS:
        nvml.add_event(0, XID, xid)
    assert by_id(devices)["GPU-0"].healthy

    nvml.add_event(0, XID, 31)
    nvml.add_event(0, XID, 140)
    assert by_id(devices)["GPU-0"].detail.startswith("Xid 140")


def test_an_xid_survives_a_restart_of_the_probe(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.read()
    nvml.add_event(0, XID, 74)
    devices.read()

    end_probe()
    eventually(lambda: by_id(devices)["GPU-0"].utilization is not None)

    assert by_id(devices)["GPU-0"].detail == "Xid 74: NVLink error"


def test_an_xid_of_one_mig_slice_does_not_affect_the_others(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    nvml.add_slice(0, 0, gi=7)
    nvml.add_slice(0, 1, gi=8)
    devices.read()

    nvml.add_event(0, XID, 94, instance=(8, 0))
    assert {id: reading.healthy for id, reading in by_id(devices).items()} == {
        "MIG-0-0": True,
        "MIG-0-1": False,
    }

    nvml.add_event(0, XID, 79)
    assert not any(reading.healthy for reading in devices.read())


def test_uncorrectable_memory_errors_make_a_device_unhealthy_until_its_reset(
    nvml: StandIn, devices: NvmlDevices
) -> None:
    nvml.add_gpu(ecc=3)
    reading = by_id(devices)["GPU-0"]
    assert not reading.healthy
    assert reading.ecc_errors == 3
    assert "3 uncorrectable memory errors" in reading.detail

    nvml.set({"gpu0.ecc": 0})
    assert by_id(devices)["GPU-0"].healthy


def test_a_double_bit_ecc_event_makes_a_device_unhealthy(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.read()

    nvml.add_event(0, DOUBLE_BIT_ECC)

    assert "double-bit ECC" in by_id(devices)["GPU-0"].detail


@pytest.mark.parametrize("how", ["lost", "handle"])
def test_a_lost_device_is_unhealthy_and_the_others_are_not(
    nvml: StandIn, devices: NvmlDevices, how: str
) -> None:
    nvml.add_gpu()
    nvml.add_gpu()
    before = devices.nodes()

    nvml.set({f"gpu0.{how}": GPU_IS_LOST})
    assert {id: reading.detail for id, reading in by_id(devices).items()} == {
        "GPU-0": "GPU is lost",
        "GPU-1": "",
    }
    nvml.add_event(1, XID, 79)
    assert by_id(devices)["GPU-1"].detail.startswith("Xid 79")

    nvml.unset(f"gpu0.{how}")
    assert by_id(devices)["GPU-0"].healthy
    assert devices.nodes() == before


def test_a_lost_device_keeps_the_reason(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    devices.read()

    nvml.set({"gpu0.lost": GPU_IS_LOST})
    nvml.add_event(0, XID, 79)

    assert by_id(devices)["GPU-0"].detail.startswith("Xid 79")


def test_a_failing_value_is_a_fault_but_one_without_permission_is_none(
    nvml: StandIn, devices: NvmlDevices
) -> None:
    nvml.add_gpu(power=f"!{UNKNOWN_ERROR}")
    nvml.add_gpu(power=f"!{NO_PERMISSION}")

    readings = by_id(devices)

    assert (readings["GPU-0"].healthy, readings["GPU-0"].detail) == (False, "Unknown Error")
    assert (readings["GPU-1"].healthy, readings["GPU-1"].power_w) == (True, None)


def test_a_faulty_device_keeps_its_model_and_memory(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    before = devices.nodes()

    nvml.set({"gpu0.name": f"!{UNKNOWN_ERROR}"})

    assert not by_id(devices)["GPU-0"].healthy
    assert devices.nodes() == before


def test_a_device_that_disappears_is_unhealthy(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu()
    nvml.add_gpu()
    devices.nodes()

    nvml.set(count=1)

    readings = by_id(devices)
    assert readings["GPU-0"].healthy
    assert readings["GPU-1"] == Reading("GPU-1", healthy=False, detail="gone: NVML does not list it any more")
    assert [device.id for device in devices.nodes()[0].devices] == ["GPU-0"]

"""Declared devices whose readings follow the jobs on them."""

from __future__ import annotations

import pytest

from gpu_flows.devices.base import Reading
from gpu_flows.devices.simulated import WHOLE_DEVICE_SHARE, Load, SimulatedDevices
from gpu_flows.schedulers.cluster.spec import declare

FIRST = "SIM-node-1-0"


def read_one(*jobs: Load, spec: str = "1x1:GTX 1080 Ti:11") -> Reading:
    [reading] = SimulatedDevices(declare(spec), lambda: {FIRST: jobs}).read()
    return reading


def test_every_declared_device_is_listed_and_read() -> None:
    source = SimulatedDevices(declare("3x4"))

    listed = [device.id for node in source.nodes() for device in node.devices]

    assert len(listed) == 12
    assert [reading.device_id for reading in source.read()] == listed


def test_an_idle_device_has_readings_close_to_zero() -> None:
    idle = read_one()

    assert idle.healthy
    assert idle.processes == ()
    assert idle.utilization is not None
    assert 0 <= idle.utilization < 1
    assert idle.memory_used_mb is not None
    assert idle.memory_used_mb < 16


def test_utilization_follows_the_measured_activity_of_the_jobs() -> None:
    assert read_one(Load(2048, activity=40.0)).utilization == pytest.approx(40, abs=2)
    assert read_one(Load(2048, 40.0), Load(2048, 25.0)).utilization == pytest.approx(65, abs=2)
    assert read_one(Load(2048, activity=0.0)).utilization == pytest.approx(0, abs=2)


def test_utilization_is_at_most_100() -> None:
    assert read_one(*[Load(1024, activity=90.0)] * 5).utilization == 100


def test_a_job_without_a_measured_activity_counts_as_busy() -> None:
    assert (read_one(Load(2048)).utilization or 0) > 50


def test_used_memory_stays_within_the_request() -> None:
    shared = read_one(Load(2048), Load(4096)).memory_used_mb
    assert shared == pytest.approx(6144, rel=0.03)
    assert (shared or 0) <= 6144

    crowded = read_one(*[Load(6000)] * 4).memory_used_mb
    assert crowded == 11 * 1024


def test_a_job_with_a_whole_device_uses_a_fixed_share_of_its_memory() -> None:
    assert read_one(Load()).memory_used_mb == pytest.approx(WHOLE_DEVICE_SHARE * 11 * 1024, rel=0.03)


def test_a_busy_device_is_hotter_and_draws_more_power() -> None:
    idle, busy = read_one(), read_one(Load(activity=95.0, processes=(17, 18)))

    assert (busy.temperature_c or 0) > (idle.temperature_c or 0) + 20
    assert (busy.power_w or 0) > (idle.power_w or 0) + 100
    assert busy.processes == (17, 18)


def test_the_same_seed_gives_the_same_sequence_of_readings() -> None:
    def twice(seed: int) -> list[list[Reading]]:
        source = SimulatedDevices(declare("1x2"), lambda: {FIRST: [Load(activity=50.0)]}, seed)
        return [source.read(), source.read()]

    assert twice(7) == twice(7)
    assert twice(7) != twice(8)
    first, second = twice(7)
    assert first != second


def test_a_device_can_be_declared_unhealthy_and_healthy_again() -> None:
    source = SimulatedDevices(declare("1x2"))

    source.set_health(FIRST, False, "pulled for the demo")
    sick, other = source.read()
    assert (sick.healthy, sick.detail) == (False, "pulled for the demo")
    assert other.healthy

    source.set_health(FIRST, True)
    assert all(reading.healthy for reading in source.read())


def test_an_unknown_device_cannot_be_declared_unhealthy() -> None:
    with pytest.raises(ValueError, match=r"There is no device nonsense\. Choose one of SIM-node-1-0"):
        SimulatedDevices(declare("1x1")).set_health("nonsense", False)


def test_a_failing_load_leaves_utilization_unknown_and_devices_healthy() -> None:
    def broken() -> dict[str, list[Load]]:
        raise OSError("no such process")

    readings = SimulatedDevices(declare("1x2"), broken).read()

    assert len(readings) == 2
    assert all(reading.healthy and reading.utilization is None for reading in readings)

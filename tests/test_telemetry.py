"""What a source of devices reports reaches the engine and the history, and only what changed is an event."""

from __future__ import annotations

from typing import Any, cast

from gpu_flows.analytics.facts import DeviceEvent, DeviceSeen, NodeSeen, Sampled
from gpu_flows.devices.base import Reading
from gpu_flows.devices.telemetry import Telemetry
from gpu_flows.runtimes.base import Runtime
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policies.fifo import Fifo


class Activity:
    """A runtime of which only the activity of its jobs is asked."""

    def __init__(self, **shares: float) -> None:
        self._shares = shares

    def sample_activity(self) -> dict[str, float]:
        return self._shares


class Devices:
    """Telemetry of an engine, with the facts that it records."""

    def __init__(self, **activity: float) -> None:
        self.engine = Engine((), Fifo())
        self.facts: list[Any] = []
        runtime = cast(Runtime, Activity(**activity))
        self.telemetry = Telemetry("pool", self.engine, runtime, lambda *facts: self.facts.extend(facts))

    def events(self) -> list[tuple[str, str]]:
        return [(fact.device_id, fact.kind) for fact in self.facts if isinstance(fact, DeviceEvent)]


def test_the_first_devices_are_no_event_and_later_changes_are() -> None:
    devices = Devices()
    devices.telemetry.set_nodes(declare("1x2"), 1.0)
    assert len([fact for fact in devices.facts if isinstance(fact, DeviceSeen)]) == 2
    assert devices.events() == []
    devices.telemetry.set_nodes(declare("1x1"), 2.0)
    devices.telemetry.set_nodes(declare("1x2"), 3.0)
    assert devices.events() == [("SIM-node-1-1", "gone"), ("SIM-node-1-1", "healthy")]


def test_the_rack_of_a_node_is_recorded_when_it_changes() -> None:
    devices = Devices()
    for now, cluster in enumerate(("2x1@2", "2x1@2", "2x1@1", "3x1@1")):
        devices.telemetry.set_nodes(declare(cluster), float(now))
    seen = [(fact.time, fact.node, fact.rack) for fact in devices.facts if isinstance(fact, NodeSeen)]
    assert seen == [
        (0.0, "node-1", "rack-1"),
        (0.0, "node-2", "rack-1"),
        (2.0, "node-2", "rack-2"),
        (3.0, "node-3", "rack-3"),
    ]


def test_a_sick_device_gets_no_job_and_is_recorded_once() -> None:
    devices = Devices()
    devices.telemetry.set_nodes(declare("1x1"), 1.0)
    sick = Reading("SIM-node-1-0", healthy=False, detail="fell off the bus")
    for at in (2.0, 3.0):
        devices.telemetry.add_readings(at, [sick])
    assert devices.events() == [("SIM-node-1-0", "sick")]
    devices.engine.submit(Job("job"))
    devices.engine.tick(3.5)
    assert devices.engine.is_waiting("job")
    devices.telemetry.add_readings(4.0, [Reading("SIM-node-1-0")])
    assert devices.events()[1:] == [("SIM-node-1-0", "healthy")]
    devices.engine.tick(4.5)
    assert "job" in devices.engine.running


def test_every_reading_is_a_sample_and_the_newest_is_kept() -> None:
    devices = Devices()
    devices.telemetry.set_nodes(declare("1x1"), 1.0)
    for at, utilization in ((2.0, 40.0), (3.0, None), (4.0, 60.0)):
        devices.telemetry.add_readings(at, [Reading("SIM-node-1-0", utilization=utilization)])
    samples = [(fact.time, fact.utilization) for fact in devices.facts if isinstance(fact, Sampled)]
    assert samples == [(2.0, 40.0), (3.0, None), (4.0, 60.0)]
    assert devices.telemetry.latest["SIM-node-1-0"].utilization == 60.0
    assert devices.engine.cluster.devices["SIM-node-1-0"].utilization == 60.0


def test_a_reading_of_an_unknown_device_changes_nothing() -> None:
    devices = Devices()
    devices.telemetry.set_nodes(declare("1x1"), 1.0)
    devices.telemetry.add_readings(2.0, [Reading("GPU-of-another-pool", utilization=5.0, healthy=False)])
    assert devices.events() == []
    assert list(devices.engine.cluster.devices) == ["SIM-node-1-0"]


def test_the_load_of_a_device_is_what_its_jobs_do() -> None:
    devices = Devices(busy=0.8)
    devices.telemetry.set_nodes(declare("1x3"), 1.0)
    for job in (Job("busy", gpus=2, memory_mb=4096), Job("idle")):
        devices.engine.submit(job)
    devices.engine.tick(2.0)
    loads = devices.telemetry.load()
    assert {id: [(load.memory_mb, load.activity) for load in found] for id, found in loads.items()} == {
        "SIM-node-1-0": [(4096, 0.8)],
        "SIM-node-1-1": [(4096, 0.8)],
        "SIM-node-1-2": [(0, 0.0)],
    }

"""The events that a pool sends: which facts become events, and what they tell automations."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import WorkPool
from prefect.events.schemas.events import Event

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    Decided,
    DeviceEvent,
    Fact,
    JobEnded,
    JobSubmitted,
    Sampled,
    Swapped,
)
from gpu_flows.devices.base import Reading
from gpu_flows.devices.idle_watch import IdleLimit, IdleWatch
from gpu_flows.dispatch.dispatcher import DECIDES_AGAIN
from gpu_flows.prefect_api.pool_events import MOST_CHARACTERS, MOST_RELATED, NEWS_S, PoolEvents
from gpu_flows.schedulers.cluster.spec import build_nodes, parse_spec
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policies.fifo import Fifo

NOW = 1_000_000.0
RUN, OTHER = "6f1d0c4e-0000-4000-8000-000000000001", "6f1d0c4e-0000-4000-8000-000000000002"
POOL = WorkPool(id=uuid4(), name="lab", type="gpu")


class Sent:
    """The events that a pool sends, as the server would receive them."""

    def __init__(self, *executing: Job) -> None:
        self.events: list[Event] = []
        jobs = {job.id: job for job in executing}
        self.pool = PoolEvents(POOL, jobs.get, self.take, clock=lambda: NOW)

    def take(self, event: str, **fields: Any) -> None:
        self.events.append(Event(event=event, **fields))

    def of(self, *facts: Fact) -> list[Event]:
        self.events.clear()
        self.pool.add(facts)
        return self.events


def submitted(job_id: str, name: str) -> JobSubmitted:
    return JobSubmitted.of(Job(job_id, NOW, name=name, user="ada", gpus=2), job_id, "lab", "train")


def related(event: Event) -> list[tuple[str, str, str]]:
    return [(r.role, r.id, r["prefect.resource.name"]) for r in event.related]


def test_a_placement_names_the_run_the_devices_and_the_policy() -> None:
    sent = Sent()
    assert sent.of(submitted(RUN, "bert")) == []
    start = AttemptStarted(RUN, 1, "srtf", "process", '["node-1"]', NOW - 1, NOW)
    held = [Allocated(RUN, 1, f"GPU-{number}", "node-1", 1000, NOW) for number in range(2)]
    (event,) = sent.of(start, *held)
    assert event.event == "gpu-flows.job.placed"
    assert event.resource.id == "gpu-flows.pool.lab"
    assert event.occurred.timestamp() == NOW
    assert related(event) == [
        ("work-pool", f"prefect.work-pool.{POOL.id}", "lab"),
        ("flow-run", f"prefect.flow-run.{RUN}", "bert"),
    ]
    assert event.payload == {
        "pool": "lab",
        "job": "bert",
        "user": "ada",
        "gpus": 2,
        "attempt": 1,
        "policy": "srtf",
        "runtime": "process",
        "nodes": ["node-1"],
        "devices": ["GPU-0", "GPU-1"],
    }


@pytest.mark.parametrize("kind", ["preempted", "moved", "resized"])
def test_an_interruption_names_the_job_that_gets_the_devices(kind: str) -> None:
    """Of a job that was adopted, the worker knows no submission, but it executes it."""
    sent = Sent(Job(RUN, NOW, name="bert", user="ada", gpus=2))
    stop = AttemptInterrupted(RUN, 2, NOW - 3, NOW, kind, "srtf", json.dumps([OTHER]))
    sent.of(submitted(OTHER, "gpt"))
    (event,) = sent.of(AttemptEnded(RUN, 2, NOW, kind), stop)
    assert event.event == f"gpu-flows.job.{kind}"
    assert [name for role, _, name in related(event) if role == "flow-run"] == ["bert", "gpt"]
    told = event.payload["job"], event.payload["freed_for"], event.payload["stopped_in_s"]
    assert told == ("bert", ["gpt"], 3.0)


@pytest.mark.parametrize(
    ("fact", "name", "payload"),
    [
        (JobEnded(RUN, NOW, "refused", "too big"), "job.refused", {"job": RUN, "why": "too big"}),
        (Swapped(NOW, "lab", "fifo", "srtf", '{"a": 1}'), "policy.swapped", {"from": "fifo", "to": "srtf"}),
        (Swapped(NOW, "lab", "fifo", "x", "{}", "unknown"), "policy.refused", {"error": "unknown"}),
        (
            Decided(NOW, "lab", "own", 1, 1, 0, 9, "a bug"),
            "policy.failed",
            {"policy": "own", "error": "a bug"},
        ),
        (Decided(NOW, "lab", "own", 1, 1, 1, 9, DECIDES_AGAIN), "policy.recovered", {"policy": "own"}),
        (DeviceEvent(NOW, "GPU-0", "n", "sick", "Xid 79"), "device.sick", {"node": "n", "detail": "Xid 79"}),
        (DeviceEvent(NOW, "GPU-0", "n", "gone"), "device.gone", {"device": "GPU-0"}),
        (DeviceEvent(NOW, "GPU-0", "n", "healthy"), "device.healthy", {"device": "GPU-0"}),
    ],
)
def test_what_people_may_react_to_is_an_event(fact: Fact, name: str, payload: dict[str, Any]) -> None:
    (event,) = Sent().of(fact)
    assert event.event == f"gpu-flows.{name}"
    assert payload.items() <= event.payload.items()
    is_of_device = name.startswith("device.")
    assert event.resource.id == ("gpu-flows.device.GPU-0" if is_of_device else "gpu-flows.pool.lab")
    assert ("gpu-pool" in [role for role, *_ in related(event)]) == is_of_device


def test_what_happens_all_the_time_is_no_event() -> None:
    usual = Decided(NOW, "lab", "fifo", 1, 0, 1, 9)
    completed = JobEnded(RUN, NOW, "completed"), AttemptEnded(RUN, 1, NOW, "completed")
    assert Sent().of(usual, *completed, Sampled(NOW, "GPU-0", 1, 1, 1, 1)) == []


def test_a_restarted_worker_repeats_no_event() -> None:
    start = AttemptStarted(RUN, 1, "srtf", "process", '["node-1"]', NOW, NOW - NEWS_S - 1)
    assert Sent().of(start) == [], "it was launched long ago, and has been adopted"
    fresh = AttemptStarted(RUN, 1, "srtf", "process", '["node-1"]', NOW, NOW - 1)
    assert Sent().of(fresh)[0].id == Sent().of(fresh)[0].id, "the server stores an id once"


def test_a_long_text_is_cut() -> None:
    (event,) = Sent().of(JobEnded(RUN, NOW, "refused", "x" * 100_000))
    assert len(event.payload["why"]) == MOST_CHARACTERS


def test_the_event_of_a_job_with_a_huge_name_and_many_winners_is_small_enough() -> None:
    sent, winners = Sent(), [f"6f1d0c4e-0000-4000-8000-{number:012}" for number in range(300)]
    sent.of(*(submitted(id, "y" * 100_000) for id in (RUN, *winners)))
    (event,) = sent.of(AttemptInterrupted(RUN, 1, NOW - 3, NOW, "preempted", "srtf", json.dumps(winners)))
    assert len(event.related) == MOST_RELATED
    texts = [*(name for _, _, name in related(event)), event.payload["job"], *event.payload["freed_for"]]
    assert max(map(len, texts)) == MOST_CHARACTERS


class HeldDevice:
    """One device that jobs hold, and what an IdleWatch says of its readings, one a minute."""

    def __init__(self, minutes: float = 3) -> None:
        self.engine = Engine(build_nodes(parse_spec("1x1")), Fifo())
        (self.id,) = self.engine.cluster.devices
        self.watch = IdleWatch(self.engine, IdleLimit(percent=10, minutes=minutes))
        self.now = 0.0

    def hold(self, *jobs: str) -> None:
        holders = self.engine.cluster.devices[self.id].holders
        holders.clear()
        holders.update(dict.fromkeys(jobs, 1))

    def read(self, *utilizations: float | None) -> list[tuple[str, float]]:
        found = []
        for utilization in utilizations:
            self.now += 60
            found += self.watch.add(self.now, [Reading(self.id, utilization)])
        return [(change.kind, change.idle_s) for change in found]


def test_a_held_device_is_idle_after_a_while_and_busy_again_once() -> None:
    device = HeldDevice()
    device.hold("a")
    assert device.read(0, 5, 9) == []
    assert device.read(9.9, 0, 0) == [("idle", 180)], "once"
    assert device.read(10, 80, 0) == [("busy", 360)]
    assert device.read(0, 0, 0) == [("idle", 180)], "again, from the last time it was busy"


def test_only_a_held_device_with_readings_is_idle() -> None:
    device = HeldDevice()
    assert device.read(0, 0, 0, 0, 0) == [], "nobody holds it"
    device.hold("a")
    assert device.read(0, 0, 50, 0, 0, 0) == [], "it works now and then"
    assert device.read(None, 0, 0, 0) == [], "it did not tell"
    device.hold("b")
    assert device.read(0, 0, 0, 0) == [], "another job has it, which has just begun"
    assert device.read(0) == [("idle", 180)]
    off = HeldDevice(minutes=0)
    off.hold("a")
    assert off.read(*[0] * 9) == []


def test_the_event_of_an_idle_device_names_its_runs() -> None:
    device = HeldDevice()
    device.now = NOW - 240
    device.hold(RUN)
    sent = Sent()
    sent.of(submitted(RUN, "bert"))
    for _ in range(4):
        device.now += 60
        sent.pool.add_use(device.watch.add(device.now, [Reading(device.id, 1.0)]))
    (event,) = sent.events
    assert (event.event, event.resource.id) == ("gpu-flows.device.idle", f"gpu-flows.device.{device.id}")
    assert ("flow-run", f"prefect.flow-run.{RUN}", "bert") in related(event)
    assert event.payload["jobs"] == "bert"
    assert event.payload["minutes"] == 3.0

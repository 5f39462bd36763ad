"""What if: recorded jobs are replayed under the policies that decided, under others, and on other devices."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pytest
from analytics_history import T, copy_empty_warehouse

from gpu_flows.analytics import recorded_trace, simulated_facts
from gpu_flows.analytics.whatif import Choice, NoRecord, Scenario, replay
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import Run, Simulation, simulate
from gpu_flows.schedulers.traces import TraceError
from gpu_flows.schedulers.workload import Arrival, forget_other_nodes

NODES = declare("2x2:V100:16 + 1x4:A100:80")
POLICIES = ("fifo", "srtf", "tiresias", "round_robin", "priority", "fair_share", "edf", "gavel", "patient")


def workload(jobs: int = 60, seed: int = 7) -> list[Arrival]:
    """Jobs with all kinds of constraints. Times are in quarters of a second, which floats hold exactly."""
    draw = random.Random(seed)
    made = []
    for number in range(jobs):
        submitted = draw.randrange(1200) / 4
        job = Job(
            f"job-{number:03}",
            submitted,
            draw.choice((0, 1, 1, 2, 4, 6)),  # 6 fit nowhere, unless they may span nodes
            draw.choice((0, 4096, 20_000)),
            user=draw.choice(("ann", "bob")),
            kind=draw.choice(("cnn", "lstm")),
            queue_priority=draw.choice((0, 0, 1)),
            priority=draw.choice((0, 0, 5)),
            deadline=submitted + 200,
            nodes=draw.choice(((), (), ("node-1", "node-3"))),
            models=draw.choice(((), (), ("A100",))),
            may_span_nodes=draw.random() < 0.3,
            preemptible=draw.random() < 0.8,
        )
        made.append(Arrival(job, draw.randrange(1, 400) / 4))
    return made


def write(database: Path, **simulations: Simulation) -> None:
    experiment = simulated_facts.Experiment("test", "{}")
    simulated_facts.write_simulations(database, experiment, simulations, now=T)


@cache
def recorded_policies() -> TemporaryDirectory[str]:
    """A warehouse with the same workload under many policies, one of them swapped twice."""
    folder = TemporaryDirectory(prefix="gpu-flows-whatif-")
    database = copy_empty_warehouse(Path(folder.name))
    found = {name: simulate(workload(), NODES, make_policy(name)) for name in POLICIES}
    swapped = Run(workload(), NODES, make_policy("fifo", {"skip": True}))
    swapped.at(90.25, lambda now: swapped.swap(make_policy("srtf"), now))
    swapped.at(200.0, lambda now: swapped.swap(make_policy("tiresias"), now))
    for _ in swapped.events():
        pass
    write(database, **found, **{"fifo:skip=true": swapped.simulation})
    return folder


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copy(Path(recorded_policies().name, "warehouse.duckdb"), tmp_path))


def find_pool(database: Path, policy: str) -> str:
    with duckdb.connect(str(database), read_only=True) as connection:
        rows = connection.execute("select distinct pool from jobs").fetchall()
    [pool] = [pool for (pool,) in rows if pool.startswith(f"sim:{policy}@")]
    return str(pool)


def outcomes(scenario: Scenario) -> dict[str, tuple[object, ...]]:
    return {
        job.name: (job.started, job.ended, job.ran_s, job.attempts, sorted(job.devices))
        for job in scenario.jobs
    }


# The replay of what ran is what happened


@pytest.mark.parametrize("policy", [*POLICIES, "fifo:skip=true"])
def test_a_replay_repeats_a_simulation_exactly(policy: str) -> None:
    database = Path(recorded_policies().name, "warehouse.duckdb")
    found = replay(database, find_pool(database, policy))
    assert len(found.recorded.jobs) > 30
    assert outcomes(found.replayed) == outcomes(found.recorded)
    assert found.replayed.figures == found.recorded.figures
    preempts = policy in ("srtf", "tiresias", "priority", "edf", "fifo:skip=true")
    assert (found.recorded.figures.preemptions > 0) == preempts
    expected = "fifo:skip=true, then srtf, then tiresias" if ":" in policy else policy
    assert found.replayed.label == expected


def test_a_prediction_from_another_policy_is_its_simulation() -> None:
    """All that the other policy would see is in the record."""
    database = Path(recorded_policies().name, "warehouse.duckdb")
    pools = {name: find_pool(database, name) for name in ("fifo", "srtf")}
    real = replay(database, pools["srtf"]).recorded
    predicted = replay(database, pools["fifo"], policies=[Choice("srtf")]).alternatives[0]
    assert outcomes(predicted).keys() == outcomes(real).keys()

    def without_devices(scenario: Scenario) -> dict[str, tuple[object, ...]]:
        return {name: values[:-1] for name, values in outcomes(scenario).items()}

    assert without_devices(predicted) == without_devices(real)
    assert predicted.figures == real.figures


def test_resized_jobs_are_replayed_with_their_work(tmp_path: Path) -> None:
    jobs = [
        Arrival(Job(f"job-{n}", n * 20.0, 2, min_gpus=1, max_gpus=4), 30.0 + 7 * (n % 5)) for n in range(20)
    ]
    database = copy_empty_warehouse(tmp_path)
    write(database, afs_l=simulate(jobs, NODES, make_policy("afs_l")))
    found = replay(database)
    real = {job.name: job.ended for job in found.recorded.jobs}
    assert {job.name: job.ended for job in found.replayed.jobs} == pytest.approx(real, abs=1e-3)
    assert found.recorded.figures.moves > 0
    assert "Twice the devices are twice as fast for jobs that can be resized." in found.assumed


# Other devices, other periods


def test_more_and_fewer_devices(database: Path) -> None:
    pool = find_pool(database, "fifo")
    more = replay(database, pool, gpus=6)
    assert (more.recorded.devices, more.alternatives[0].devices) == (8, 14)
    assert more.cluster == "with 1 node of 4 GPUs and 1 node of 2 GPUs more like node-3 (A100)"
    assert more.alternatives[0].figures.avg_turnaround_s < more.replayed.figures.avg_turnaround_s
    assert [effect.user for effect in more.alternatives[0].users] != []
    assert all((effect.change_s or 0) < 0 for effect in more.alternatives[0].users)
    fewer = replay(database, pool, gpus=-5)
    assert fewer.cluster == "without 4 of node-3, 1 of node-2"
    [alternative] = fewer.alternatives
    assert alternative.devices == 3
    missing = {job.name for job in alternative.unfinished}
    assert missing == {job.name for job in fewer.recorded.jobs if job.gpus == 4 or _needs_a100(job.name)}
    assert all("impossible" in job.trouble for job in alternative.unfinished)
    with pytest.raises(ValueError, match="has 8 GPUs; taking 8 away leaves none"):
        replay(database, pool, gpus=-8)


def _needs_a100(name: str) -> bool:
    job = next(each.job for each in workload() if each.job.id == name)
    return bool(job.models) or job.memory_mb > 16_384 or (job.gpus > 3)


def test_another_cluster_ignores_the_names_of_its_nodes(database: Path) -> None:
    pool = find_pool(database, "fifo")
    nodes = declare("1x8:A100:80 + 1x8:V100:16")
    renamed = [
        replace(
            node,
            name=f"other-{n}",
            devices=tuple(replace(device, node=f"other-{n}") for device in node.devices),
        )
        for n, node in enumerate(nodes)
    ]
    found = replay(database, pool, nodes=renamed, cluster="two large nodes")
    assert found.cluster == "on two large nodes"
    assert found.alternatives[0].unfinished == []


def test_a_period_has_the_jobs_of_its_time_and_those_it_met(database: Path) -> None:
    pool = find_pool(database, "srtf")
    whole, part = replay(database, pool), replay(database, pool, since=100.0, until=200.0)
    assert {job.name for job in part.recorded.jobs} == {
        job.name for job in whole.recorded.jobs if 100 <= job.submitted < 200
    }
    assert any("that competed with them are replayed and not counted." in note for note in part.known)
    # Jobs that ran at the beginning go on where they were, so the others fare as they did.
    assert part.replayed.figures.avg_turnaround_s == pytest.approx(
        part.recorded.figures.avg_turnaround_s, rel=0.01
    )


# The same record as a trace


def test_a_recorded_trace_has_the_constraints_of_its_jobs(database: Path) -> None:
    trace = recorded_trace.load(database, find_pool(database, "fifo"))
    asked = {each.job.id: each.job for each in workload()}
    assert len(trace.arrivals) > 30
    assert trace.remark == ""
    names = ("nodes", "models", "may_span_nodes", "preemptible", "queue_priority", "priority")
    for arrival in trace.arrivals:
        job = asked[arrival.job.id.rpartition("/")[2]]
        assert {name: getattr(arrival.job, name) for name in names} == {
            name: getattr(job, name) for name in names
        }


def test_one_of_several_pools_must_be_chosen(database: Path) -> None:
    with pytest.raises(NoRecord, match=r"holds 10 pools; choose one\. There are: sim:"):
        replay(database)
    with pytest.raises(TraceError, match="choose one, as in --format warehouse:pool=sim:"):
        recorded_trace.load(database)


def test_nodes_of_another_cluster_are_forgotten() -> None:
    job = Job("a", nodes=("dgx*",))
    [here] = forget_other_nodes([Arrival(job, 1.0)], NODES)
    [there] = forget_other_nodes([Arrival(job, 1.0)], declare("1x1:A100:80"))
    assert (here.job.nodes, there.job.nodes) == ((), ())
    own = Arrival(Job("b", nodes=("dgx*", "NODE-2")), 1.0)
    assert forget_other_nodes([own], NODES) == [own]

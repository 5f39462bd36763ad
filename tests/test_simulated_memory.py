"""Jobs that truly need more memory than they state: they die of it and come back with a raised bound."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.prediction.interference import Interference, PairExcess
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import summarize
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival

GB = 1024


def arrival(name: str, stated: float, needed: float, seconds: float = 100.0, kind: str = "") -> Arrival:
    job = Job(name, memory_mb=int(stated * GB), kind=kind)
    return Arrival(job, seconds, memory_mb=int(needed * GB))


def run(*arrivals: Arrival, cluster: str = "1x1:T4:16", **conditions: object) -> Simulation:
    policy = make_policy("fifo", {"sharing": "shared"})
    return simulate(arrivals, declare(cluster), policy, Conditions(**conditions))  # type: ignore[arg-type]


def outcomes(found: Simulation, name: str) -> list[str]:
    return [attempt.outcome for attempt in found.attempts if attempt.job_id == name]


def test_the_job_that_comes_last_to_an_overfull_device_dies_and_comes_back() -> None:
    found = run(arrival("a", 6, 9), arrival("b", 6, 8))
    assert outcomes(found, "a") == ["completed"], "it came first"
    assert outcomes(found, "b") == ["oom", "completed"]
    assert [job.ended for job in found.jobs] == [100.0, 200.0], "with 10.5 GB it no longer fits beside `a`"
    summary = summarize(found)
    assert (summary.ooms, summary.finished, summary.unfinished) == (1, 2, 0)


def test_a_job_that_dies_later_loses_its_work_and_goes_on_if_others_have_left() -> None:
    found = run(arrival("a", 6, 9), arrival("b", 6, 8), oom_after=0.5)
    assert found.ooms == 1
    assert found.jobs[1].ended == 200.0
    assert found.jobs[1].ran_s == 150.0
    found = run(arrival("a", 6, 9, seconds=30), arrival("b", 6, 8), oom_after=0.5)
    assert (found.ooms, found.jobs[1].ended) == (0, 100.0)


def test_a_bound_is_raised_at_most_twice() -> None:
    found = run(arrival("a", 4, 30), cluster="1x1:T4:16+1x1:A100:24+1x1:H100:80")
    assert outcomes(found, "a") == ["oom", "oom", "completed"], "16, 24, then 80 GB"
    found = run(arrival("a", 1, 70), cluster="1x1:T4:4+1x1:T4:6+1x1:T4:9+1x1:H100:80")
    assert outcomes(found, "a") == ["oom", "oom", "completed"], "the last raise gives the largest device"
    found = run(arrival("a", 1, 90), cluster="1x1:T4:4+1x1:T4:6+1x1:T4:9+1x1:H100:80")
    [job] = found.jobs
    assert outcomes(found, "a") == ["oom", "oom", "oom"]
    assert job.reason is not None
    assert job.reason.code == "out_of_memory"
    assert "its bound was raised 2 times" in str(job.reason)
    assert summarize(found).unfinished == 1


def test_a_job_that_no_device_can_hold_fails_at_once() -> None:
    [job] = run(arrival("a", 0, 20)).jobs
    assert job.reason is not None
    assert "no device that it may use has more than 16 GB" in str(job.reason)
    assert job.attempts == 1


def test_a_bound_beyond_all_devices_means_the_largest_one() -> None:
    found = run(arrival("a", 4, 20), cluster="1x1:T4:16+1x1:A100:22")
    assert outcomes(found, "a") == ["oom", "completed"], "24 GB would be the next bound"


def test_jobs_that_need_what_they_state_never_run_out_of_memory() -> None:
    arrivals = [Arrival(Job(f"{n}", memory_mb=6 * GB), 10.0) for n in range(9)]
    found = run(*arrivals)
    assert found.ooms == 0
    assert summarize(found).memory_use == pytest.approx(9 * 6 * 10 / (16 * 50))


def test_memory_use_is_what_jobs_truly_need_over_the_makespan() -> None:
    found = run(arrival("a", 8, 4, seconds=100), arrival("b", 8, 8, seconds=50), cluster="2x1:T4:16")
    assert summarize(found).memory_use == pytest.approx((4 * 100 + 8 * 50) / (2 * 16 * 100))
    assert math.isnan(summarize(run(Arrival(Job("a"), 10.0))).memory_use)


def test_pairs_slow_each_other_down_as_measured_while_both_run() -> None:
    pairs = Interference([PairExcess("t4", "a", "b", 1.0), PairExcess("t4", "b", "a", 0.0)])
    found = run(arrival("a", 4, 4, kind="a"), arrival("b", 4, 4, kind="b"), pairs=pairs)
    assert [job.ended for job in found.jobs] == [150.0, 100.0]


def test_a_trace_states_true_memory(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "job_id,submit_time,num_gpus,duration,gpu_memory_gb,peak_memory_gb\na,0,1,10,4,6\nb,0,1,10,4,\n"
    )
    a, b = load(path).arrivals
    assert (a.job.memory_mb, a.true_memory_mb, b.true_memory_mb) == (4 * GB, 6 * GB, 4 * GB)

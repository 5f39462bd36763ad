"""Generated workloads: reproducible by seed, and according to their options."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from gpu_flows.common.discovery import summary
from gpu_flows.schedulers.simulation.generators import WORKLOADS, WorkloadError, generate
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN_SECONDS
from gpu_flows.schedulers.simulation.workloads.experiments import AMS560_JOBS
from gpu_flows.schedulers.traces import TraceError
from gpu_flows.schedulers.workload import Arrival


def gaps(arrivals: list[Arrival]) -> list[float]:
    return [after.job.submitted - before.job.submitted for before, after in pairwise(arrivals)]


def unevenness(values: list[float]) -> float:
    return pstdev(values) / fmean(values)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four bursts of fifty small jobs and ten large ones, an hour apart."""
    rows = ["job_id,submit_time,num_gpus,duration,user,deadline,expected"]
    for burst in range(4):
        rows += [f"s{burst}-{n},{3600 * burst + n},1,{10 + n},ann,{10**6},5" for n in range(50)]
        rows += [f"l{burst}-{n},{3600 * burst + 50 + n},8,{1000 + n},bob,{10**6},5" for n in range(10)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(rows))
    return path


@pytest.mark.parametrize("spec", ["poisson:jobs=50", "bursty:jobs=50", "schedulearn", "ams560", "fitted"])
def test_workload_depends_only_on_the_seed_and_is_sorted(spec: str, trace: Path) -> None:
    spec = f"fitted:jobs=50,trace={trace}" if spec == "fitted" else spec
    jobs = generate(spec, seed=3)
    assert jobs == generate(spec, seed=3) != generate(spec, seed=4)
    assert jobs == sorted(jobs, key=lambda arrival: arrival.job.order)
    assert jobs[0].job.submitted == 0
    assert len({arrival.job.id for arrival in jobs}) == len(jobs)


def test_poisson_keeps_its_rate_sizes_and_mean() -> None:
    jobs = generate("poisson:jobs=5000,rate_per_hour=120,sizes=1:3+4:1,mean_s=600,sigma=0.5,users=2")
    assert 3600 / fmean(gaps(jobs)) == pytest.approx(120, rel=0.05)
    assert unevenness(gaps(jobs)) == pytest.approx(1, abs=0.1)
    sizes = Counter(arrival.job.gpus for arrival in jobs)
    assert set(sizes) == {1, 4}
    assert sizes[4] / 5000 == pytest.approx(0.25, abs=0.03)
    assert fmean(arrival.duration_s for arrival in jobs) == pytest.approx(600, rel=0.05)
    assert {arrival.job.user for arrival in jobs} == {"user-1", "user-2"}


@pytest.mark.parametrize(("durations", "expected"), [("constant", 0), ("exponential", 1)])
def test_distributions_of_run_times(durations: str, expected: float) -> None:
    drawn = [arrival.duration_s for arrival in generate(f"poisson:jobs=4000,mean_s=60,durations={durations}")]
    assert fmean(drawn) == pytest.approx(60, rel=0.1)
    assert unevenness(drawn) == pytest.approx(expected, abs=0.1)


def test_bursty_arrivals_are_uneven() -> None:
    jobs = generate("bursty:jobs=3000,rate_per_hour=3600,burst_s=60,pause_s=600")
    assert unevenness(gaps(jobs)) > 3
    assert median(gaps(jobs)) < 2, "within a burst, one a second"
    assert fmean(gaps(jobs)) == pytest.approx((60 + 600) / 60, rel=0.35)


@pytest.mark.parametrize("jobs", [5, 10, 15, 20])
def test_schedulearn_submits_batches_with_measured_times(jobs: int) -> None:
    batches = generate(f"schedulearn:jobs={jobs},batches=3")
    assert Counter(arrival.job.submitted for arrival in batches) == {0: jobs, 10: jobs, 20: jobs}
    for arrival in batches:
        assert arrival.duration_s == SCHEDULEARN_SECONDS[arrival.job.kind][arrival.job.gpus]
        assert not arrival.job.may_span_nodes
    assert len(generate(f"schedulearn:jobs={jobs}")) == jobs


def test_schedulearns_resnet_experiment() -> None:
    jobs = generate("schedulearn:kind=pytorch-resnet,jobs=1,batches=3,every_s=120,gpus=4,elastic=true")
    assert [(a.job.submitted, a.job.kind, a.duration_s) for a in jobs] == [
        (0, "pytorch-resnet", 194.6),
        (120, "pytorch-resnet", 194.6),
        (240, "pytorch-resnet", 194.6),
    ]
    assert {(arrival.job.min_gpus, arrival.job.max_gpus) for arrival in jobs} == {(1, 4)}


def test_ams560_has_the_load_that_is_asked_for() -> None:
    jobs = generate("ams560:jobs=2000,devices=2,load=3")
    assert Counter(arrival.job.kind for arrival in jobs) == dict.fromkeys(AMS560_JOBS, 500)
    work = sum(arrival.duration_s * arrival.job.gpus for arrival in jobs)
    assert work / jobs[-1].job.submitted / 2 == pytest.approx(3, rel=0.1)
    lstm = next(arrival for arrival in jobs if arrival.job.kind == "lstm")
    assert (lstm.utilization, lstm.job.memory_mb) == (60, 8 * 1024)


def test_ams560_keeps_its_load_with_wide_jobs() -> None:
    jobs = generate("ams560:jobs=2000,devices=12,load=2,wide=true")
    assert {(arrival.job.kind, arrival.job.gpus) for arrival in jobs} == {
        ("cnn", 4),
        ("lstm", 2),
        ("matrix-multiplication", 1),
        ("xgboost", 1),
    }
    work = sum(arrival.duration_s * arrival.job.gpus for arrival in jobs)
    assert work / jobs[-1].job.submitted / 12 == pytest.approx(2, rel=0.1)


def test_fitted_resembles_its_trace(trace: Path) -> None:
    jobs = generate(f"fitted:trace={trace},jobs=4000")
    small = [arrival for arrival in jobs if arrival.job.gpus == 1]
    large = [arrival for arrival in jobs if arrival.job.gpus == 8]
    assert len(small) + len(large) == 4000
    assert len(small) / 4000 == pytest.approx(5 / 6, abs=0.03)
    assert {arrival.job.user for arrival in large} == {"bob"}
    assert {(arrival.job.deadline, arrival.job.expected_s) for arrival in jobs} == {(None, None)}
    assert fmean(arrival.duration_s for arrival in small) == pytest.approx(34.5, rel=0.1)
    assert fmean(arrival.duration_s for arrival in large) == pytest.approx(1004.5, rel=0.01)
    assert max(arrival.duration_s for arrival in large) <= 1009
    assert unevenness(gaps(jobs)) == pytest.approx(unevenness([1.0] * 236 + [3541.0] * 3), rel=0.3)
    twice = generate(f"fitted:trace={trace},jobs=4000,load=2")
    assert twice[-1].job.submitted == pytest.approx(jobs[-1].job.submitted / 2)


def test_fitted_to_a_single_job(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("job_id,submit_time,num_gpus,duration\na,7,2,60\n")
    jobs = generate(f"fitted:trace={path},jobs=3")
    assert [(a.job.submitted, a.job.gpus, round(a.duration_s)) for a in jobs] == [(0, 2, 60)] * 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "poison:jobs=3",
            "no workload 'poison'.* There are: ams560, bursty, fitted, poisson, recurring, schedulearn",
        ),
        ("poisson:jobs", "'jobs' is not KEY=VALUE"),
        ("poisson:jobs=1,jobs=2", "'jobs=2' is given twice"),
        ("poisson:jobs=0", "jobs: Input should be greater than or equal to 1"),
        (
            "poisson:rate=3",
            "rate: there is no such name. Did you mean 'rate_per_hour'.*Its options: jobs, rate_per_hour",
        ),
        ("poisson:mean_s=inf", "mean_s: Input should be a finite number"),
        ("poisson:sizes=four", "sizes: .*write GPUS:WEIGHT"),
        ("poisson:sizes=0:1", "sizes: "),
        ("schedulearn:kind=caffe", "kind: .*keras-mnist"),
        ("schedulearn:gpus=5", "gpus: "),
        ("fitted", "trace: Field required"),
    ],
)
def test_invalid_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        generate(spec)


def test_fitted_to_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        generate(f"fitted:trace={tmp_path / 'missing.csv'}")


def test_every_workload_and_option_has_a_description() -> None:
    for name, workload in WORKLOADS.items():
        assert workload.name == name
        assert summary(workload).endswith(".")
        assert all(field.description for field in workload.model_fields.values())

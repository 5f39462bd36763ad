"""Tiresias against a plain replay of its simulator's lists, and the Gittins index against its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Start
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.policy_support.gittins import Gittins
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.workload import Arrival


class Ask(NamedTuple):
    submitted: int
    gpus: int
    duration: int


class Outcome(NamedTuple):
    ends: list[float]
    preemptions: int
    events: int


def replay(jobs: Sequence[Ask], gpus: int, limits: Sequence[int], promote: int) -> Outcome:
    """The authors' event loop with whole lists, on whole seconds, its demotion times put right."""
    coming = sorted(range(len(jobs)), key=lambda i: jobs[i].submitted)
    queues: list[list[int]] = [[] for _ in range(len(limits) + 1)]
    queue, ran, had, since = ([0] * len(jobs) for _ in range(4))  # had: service since the last promotion
    runs = [False] * len(jobs)
    ends = [math.inf] * len(jobs)
    active: list[int] = []
    preemptions = events = 0

    def moments() -> list[float]:
        """When each active job ends, comes down or goes up, if nothing happens before."""
        found: list[float] = [jobs[coming[0]].submitted] if coming else []
        for i in active:
            job, q = jobs[i], queue[i]
            if runs[i]:
                found.append(since[i] + job.duration - ran[i])
                if q < len(limits):
                    found.append(since[i] + math.ceil(Fraction(limits[q] - had[i], job.gpus)))
            elif promote and q:
                found.append(since[i] + math.ceil(Fraction(promote * had[i], job.gpus)))
        return found

    while upcoming := moments():
        now = int(min(upcoming))
        events += 1
        for i in [i for i in active if runs[i] and since[i] + jobs[i].duration - ran[i] == now]:
            ends[i] = now
            active.remove(i)
            queues[queue[i]].remove(i)
        while coming and jobs[coming[0]].submitted == now:
            i = coming.pop(0)
            active.append(i)
            queues[0].append(i)
            since[i] = now
        for i in active:
            before = queue[i]
            if runs[i]:
                ran[i] += now - since[i]
                had[i] += (now - since[i]) * jobs[i].gpus
                since[i] = now
                while queue[i] < len(limits) and had[i] >= limits[queue[i]]:
                    queue[i] += 1
            elif promote and queue[i] and (now - since[i]) * jobs[i].gpus >= promote * had[i]:
                queue[i] = had[i] = 0
            if queue[i] != before:
                queues[before].remove(i)
                queues[queue[i]].append(i)
        free = gpus
        for members in queues:
            for i in members:
                fits = jobs[i].gpus <= free
                free -= jobs[i].gpus if fits else 0
                preemptions += runs[i] and not fits
                since[i] = since[i] if fits == runs[i] else now
                runs[i] = fits
            members.sort(key=lambda i: not runs[i])
    return Outcome(ends, preemptions, events)


def simulated(
    jobs: Sequence[Ask], cluster: str, conditions: Conditions | None = None, **options: Any
) -> Simulation:
    arrivals = [
        Arrival(Job(id=f"{i:03}", submitted=job.submitted, gpus=job.gpus, may_span_nodes=True), job.duration)
        for i, job in enumerate(jobs)
    ]
    found = simulate(arrivals, declare(cluster), make_policy("tiresias", options), conditions)
    found.jobs.sort(key=lambda result: result.arrival.job.id)
    return found


asks = st.builds(Ask, st.integers(0, 120), st.sampled_from([1, 1, 1, 2, 3, 4, 7]), st.integers(0, 150))
limits = st.lists(st.integers(1, 250), max_size=3, unique=True).map(sorted)


clusters = st.sampled_from(["1x8", "2x4", "8x1"])
# A wide job preempts the jobs of a node; one of them then takes the place of a job with a later rank.
CHAIN = [
    Ask(86, 1, 106),
    Ask(22, 2, 81),
    Ask(22, 1, 161),
    Ask(123, 4, 110),
    Ask(64, 2, 112),
    Ask(47, 3, 120),
    Ask(122, 1, 100),
]


@settings(max_examples=120, deadline=None)
@given(
    jobs=st.lists(asks, min_size=1, max_size=30),
    cluster=clusters,
    limits=limits,
    promote=st.sampled_from([0, 0, 1, 3]),
)
@example(jobs=CHAIN, cluster="2x4", limits=[9, 259], promote=0)
# Here a victim is moved, because a job before it takes its device. No end changes by that.
@example(
    jobs=[Ask(0, 1, 106), Ask(0, 1, 100), Ask(81, 7, 8), Ask(104, 1, 3)], cluster="1x8", limits=[2], promote=3
)
def test_every_job_ends_as_in_a_replay_of_the_authors_lists(
    jobs: list[Ask], cluster: str, limits: list[int], promote: int
) -> None:
    found = simulated(jobs, cluster, limits=limits, promote=promote, placement="any")
    said = replay(jobs, 8, limits, promote)
    assert found.policy_error == ""
    assert [job.ended for job in found.jobs] == said.ends
    assert (found.preemptions, found.decisions) == (said.preemptions, said.events)


@settings(max_examples=50, deadline=None)
@given(st.lists(asks, min_size=1, max_size=30), st.sampled_from(["las", "gittins"]), st.booleans())
def test_no_job_is_lost_when_nodes_fail(jobs: list[Ask], discipline: str, breaks: bool) -> None:
    conditions = Conditions(node_mtbf_s=150, repair_s=20, restart_s=2.5) if breaks else None
    options: dict[str, Any] = {"limits": [60, 140], "quantum": 50, "promote": 2, "discipline": discipline}
    found = simulated([job._replace(gpus=min(job.gpus, 4)) for job in jobs], "2x4", conditions, **options)
    assert found.policy_error == ""
    assert all(job.ended is not None for job in found.jobs)


def test_a_demoted_job_that_still_fits_keeps_its_devices() -> None:
    found = simulated([Ask(0, 1, 100), Ask(50, 1, 10)], "1x2", limits=[50], placement="any")
    assert [(each.started, each.ended) for each in found.attempts] == [(50, 60), (0, 100)]


def test_the_job_with_the_least_service_runs_and_others_resume_later() -> None:
    found = simulated([Ask(0, 2, 100), Ask(70, 2, 10)], "1x2", limits=[100])
    assert [(each.job_id, each.started, each.ended) for each in found.attempts] == [
        ("000", 0, 70),
        ("001", 70, 80),
        ("000", 80, 110),
    ]


def test_without_limits_no_job_is_preempted_and_limits_must_rise() -> None:
    assert simulated([Ask(0, 2, 100), Ask(70, 2, 10)], "1x2", limits=[]).preemptions == 0
    for wrong in ([0], [100, 100], [200, 100]):
        with pytest.raises(PolicyError, match="each above the one before"):
            make_policy("tiresias", {"limits": wrong})


def test_a_long_job_starves_unless_it_is_promoted() -> None:
    stream = [Ask(0, 1, 60), *(Ask(start, 1, 30) for start in range(30, 3000, 30))]
    starving, promoted = (simulated(stream, "1x1", limits=[30], promote=knob).jobs[0] for knob in (0, 2))
    assert starving.ended == 3030
    assert promoted.ended is not None
    assert promoted.ended < 200


def starts(engine: Engine, now: float) -> list[str]:
    return [action.job.id for action in engine.tick(now) if isinstance(action, Start)]


def test_without_preemption_jobs_of_the_first_queue_start_first() -> None:
    engine = Engine(declare("1x2"), make_policy("tiresias", {"limits": [100]}), can_preempt=False)
    engine.submit(Job(id="long", gpus=2))
    assert starts(engine, 0) == ["long"]
    engine.submit(Job(id="short", gpus=2, submitted=90))
    assert engine.tick(90) == []
    engine.requeue("long", engine.running["long"].progress(200))  # its node broke down
    assert starts(engine, 200) == ["short"]


def test_after_a_swap_the_service_of_running_jobs_counts() -> None:
    engine = Engine(declare("1x2"), make_policy("fifo"), can_preempt=True)
    engine.submit(Job(id="old"))
    engine.submit(Job(id="young", submitted=50))
    engine.tick(0)
    engine.started("young", 50, 1)
    engine.submit(Job(id="new", submitted=120))
    assert engine.tick(120) == []
    engine.swap(make_policy("tiresias", {"limits": [100]}))
    stopped = [action.running.job.id for action in engine.tick(120) if isinstance(action, Preempt)]
    assert stopped == ["old"]
    assert engine.wake_at == 150  # when `young` has had its 100


def test_the_time_of_a_launch_is_no_service() -> None:
    engine = Engine(declare("1x4"), make_policy("tiresias", {"limits": [100]}), can_preempt=True)
    engine.submit(Job(id="job", gpus=4))
    engine.tick(0)
    assert engine.wake_at == 25
    engine.started("job", 10, 1)
    engine.tick(25)
    assert engine.wake_at == 35


def test_queue_priority_comes_before_the_queues_of_tiresias() -> None:
    engine = Engine(declare("1x1"), make_policy("tiresias", {"limits": [10]}), can_preempt=True)
    engine.submit(Job(id="urgent", queue_priority=0))
    engine.tick(0)
    engine.submit(Job(id="fresh", queue_priority=1, submitted=50))
    assert engine.tick(50) == []


# -- the Gittins index --------------------------------------------------------------------------


def index_by_definition(samples: Sequence[int], attained: int, quantum: int) -> Fraction:
    left = [sample - attained for sample in samples if sample > attained]
    if not left:
        return Fraction(0)
    chance = Fraction(sum(each <= quantum for each in left), len(left))
    return chance / Fraction(sum(min(each, quantum) for each in left), len(left))


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 120), st.integers(0, 10))
def test_the_index_follows_its_definition(samples: list[int], quantum: int, quanta: int) -> None:
    attained = quanta * quantum
    found = Gittins(quantum, samples).index(attained + quantum / 2)  # nothing changes within a quantum
    assert found == pytest.approx(float(index_by_definition(samples, attained, quantum)))


def test_the_index_changes_once_a_quarter_of_the_samples_is_new() -> None:
    gittins = Gittins(10)
    assert (gittins.index(0), gittins.next_change(0)) == (0, math.inf)
    for _ in range(6):
        gittins.learn(5)
    assert gittins.refresh()
    assert gittins.index(0) == pytest.approx(1 / 5)
    gittins.learn(100)
    assert not gittins.refresh()
    gittins.learn(100)
    assert gittins.refresh()
    assert gittins.index(0) == pytest.approx(6 / (6 * 5 + 2 * 10))
    assert not gittins.refresh()


def test_by_index_a_job_that_is_nearly_done_comes_before_a_new_one() -> None:
    samples = [1000, 1000, 100]
    jobs = [Ask(0, 1, 100), Ask(95, 1, 1000)]
    one_queue = simulated(jobs, "1x1", discipline="gittins", samples=samples, quantum=10, limits=[])
    assert [job.ended for job in one_queue.jobs] == [100, 1100]
    two_queues = simulated(jobs, "1x1", discipline="gittins", samples=samples, quantum=10, limits=[50])
    assert two_queues.jobs[0].ended == 150  # the first queue still comes before the second


def test_by_index_a_job_that_outlasted_most_is_preempted_for_a_new_one() -> None:
    samples = [10, 10, 10, 1000]
    found = simulated(
        [Ask(0, 1, 1000), Ask(55, 1, 10)], "1x1", discipline="gittins", samples=samples, quantum=10, limits=[]
    )
    assert [job.ended for job in found.jobs] == [1010, 65]


def test_the_index_is_learned_from_jobs_that_end() -> None:
    quick = [Ask(10 * i, 1, 10) for i in range(20)]
    jobs = [*quick, Ask(200, 1, 500), Ask(260, 1, 10)]
    learned = simulated(jobs, "1x1", discipline="gittins", quantum=20, limits=[])
    assert learned.jobs[-1].ended == 270  # jobs like it took 10, and the one before it did not
    assert simulated(jobs, "1x1", discipline="las", limits=[]).jobs[-1].ended == 710

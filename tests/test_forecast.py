"""Forecasts: when the jobs of a pool start and end, and what would let them start earlier."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest

from gpu_flows.schedulers import policy
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.forecast import alternatives
from gpu_flows.schedulers.forecast.alternatives import (
    Holder,
    _changes,
    find_alternatives,
    find_places,
    look_ahead,
    look_ahead_together,
)
from gpu_flows.schedulers.forecast.eta import forecast
from gpu_flows.schedulers.forecast.forward import UnknownDurations, begin, medians, run_until
from gpu_flows.schedulers.forecast.later_arrivals import draw_later
from gpu_flows.schedulers.forecast.pool_state import Costs, PoolState
from gpu_flows.schedulers.mirror import Held
from gpu_flows.schedulers.model import NO_PROGRESS, Job, Progress
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import PolicyError
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.simulation.simulator import Run, simulate
from gpu_flows.schedulers.workload import Arrival

NODES = tuple(declare("1x2"))
FIRST, SECOND = NODES[0].devices


def exactly(seconds: float) -> Estimate:
    return Estimate(seconds, seconds, "stated")


def waiting(job_id: str, gpus: int = 1, submitted: float = 0.0, **fields: object) -> tuple[Job, Progress]:
    return Job(job_id, submitted, gpus, name=job_id, **fields), NO_PROGRESS  # type: ignore[arg-type]


def make_state(**changed: object) -> PoolState:
    """At 100, job `a` has run for 40 of 100 seconds on one of two devices; `wide` needs both, `small` one."""
    state = PoolState(
        "gpu",
        100.0,
        "fifo",
        {},
        NODES,
        waiting=(waiting("wide", 2, 70.0), waiting("small", 1, 80.0)),
        running=(Held(Job("a", 50.0, name="a"), (FIRST,), 60.0, 1, NO_PROGRESS),),
        durations={"a": exactly(100), "wide": exactly(50), "small": exactly(10)},
    )
    return replace(state, **changed)  # type: ignore[arg-type]


def test_jobs_start_when_the_jobs_before_them_end() -> None:
    run = begin(make_state(), medians(make_state()))
    run_until(run, lambda _: False)
    times = {
        job_id: (run.result(job_id).started, run.result(job_id).ended) for job_id in ("a", "wide", "small")
    }
    # FIFO keeps the free device for `wide`, which waits for `a`.
    assert times == {"a": (60.0, 160.0), "wide": (160.0, 210.0), "small": (210.0, 220.0)}


def test_an_eta_of_certain_durations_is_certain() -> None:
    etas = forecast(make_state())
    assert etas["wide"].start_p50 == pytest.approx(160, abs=2)
    assert etas["wide"].end_p90 == pytest.approx(210, abs=6)
    assert etas["a"].start_p50 == etas["a"].start_p90 == 60.0


def test_the_ninetieth_percentile_of_a_running_job_is_that_of_its_duration() -> None:
    state = make_state(durations={**make_state().durations, "a": Estimate(100, 200, "history")})
    eta = forecast(state, draws=200)["a"]
    # Durations are lognormal; of those over the 40 s that have passed, the median is a little above 100.
    assert 160 < eta.end_p50 < 170
    assert 255 < eta.end_p90 < 275


def test_a_forecast_is_the_same_each_time_and_stops_when_it_is_late() -> None:
    state = make_state(durations={**make_state().durations, "a": Estimate(100, 200, "history")})
    assert forecast(state) == forecast(state)
    once = forecast(state, is_late=lambda: True)
    assert once["a"].end_p50 == once["a"].end_p90


def test_nothing_is_foreseen_where_a_duration_is_unknown() -> None:
    state = make_state(durations={"a": exactly(100)})
    with pytest.raises(UnknownDurations, match="how long wide takes"):
        forecast(state)
    assert forecast(replace(state, typical=exactly(30)))["small"].end_p50 == pytest.approx(220, abs=5)


def test_costs_of_launches_and_the_progress_of_stopped_jobs_count() -> None:
    stopped = Progress(attempts=1, ran_s=30.0, work_s=30.0, stopped=90.0)
    job = Job("wide", 70.0, 2, name="wide")
    state = make_state(waiting=((job, stopped),), costs=Costs(launch_s=2.0, restart_s=3.0))
    run = begin(state, medians(state))
    run_until(run, lambda _: False)
    assert run.result("wide").started == 160.0
    assert run.result("wide").ended == 160 + 2 + 3 + 20


def test_a_waiting_job_has_started_when_it_is_launched() -> None:
    slow = make_state(costs=Costs(launch_s=5.0, launch_upper_s=10.0))
    eta = forecast(slow, draws=200)["wide"]
    assert eta.start_p50 == pytest.approx(165, abs=2)
    assert eta.start_p90 == pytest.approx(170, abs=3)
    assert eta.end_p50 == pytest.approx(215, abs=2)
    assert forecast(slow)["a"].start_p90 == 60.0, "it runs"


def test_continuing_from_any_moment_is_the_same_as_never_having_stopped() -> None:
    nodes = tuple(declare("2x4"))
    arrivals = [Arrival(Job(f"j{n}", float(3 * n), 1 + n % 4), 20.0 + 7 * (n % 5)) for n in range(60)]
    for name in ("fifo", "srtf", "conservative"):
        state = PoolState("gpu", 0.0, name, {}, nodes)
        now = 90.0
        come = [arrival for arrival in arrivals if arrival.job.submitted <= now]
        before = simulate(come, nodes, state.make_policy())
        last = {each.job_id: each for each in before.attempts if each.started <= now < each.ended}
        done = {job.arrival.job.id for job in before.jobs if job.ended is not None and job.ended <= now}
        expecting = {each.job.id: each.job.expecting(each.duration_s) for each in come}
        worked = {
            job_id: sum(
                each.ended - each.started
                for each in before.attempts
                if each.job_id == job_id and each.ended <= now
            )
            for job_id in expecting
        }
        begun = replace(
            state,
            now=now,
            waiting=tuple(
                (
                    job,
                    Progress(1, worked[job_id], 0.0, worked[job_id], now) if worked[job_id] else NO_PROGRESS,
                )
                for job_id, job in expecting.items()
                if job_id not in last and job_id not in done
            ),
            running=tuple(
                Held(
                    expecting[job_id],
                    each.devices,
                    each.started,
                    each.number,
                    Progress(work_s=worked[job_id]),
                )
                for job_id, each in last.items()
            ),
            durations={each.job.id: exactly(each.duration_s) for each in come},
        )
        run = begin(begun, medians(begun))
        run_until(run, lambda _: False)
        alone = {job.arrival.job.id: job.ended for job in before.jobs}
        assert {job_id: run.result(job_id).ended for job_id in begun.jobs()} == pytest.approx(
            {job_id: alone[job_id] for job_id in begun.jobs()}
        ), name


def test_what_a_job_waits_for_is_named() -> None:
    outlook = look_ahead(make_state(), "wide")
    assert outlook is not None
    assert (outlook.start, set(outlook.devices)) == (160.0, {FIRST.id, SECOND.id})
    assert [(holder.name, holder.until) for holder in outlook.waits_for] == [("a", 160.0)]


def test_alternatives_are_the_changes_that_let_the_job_start_earlier() -> None:
    found = {each.label: each.start for each in find_alternatives(make_state(), "wide", 160.0)}
    assert found == {"on 1 GPU instead of 2": 100.0}
    found = {each.label: each.start for each in find_alternatives(make_state(), "small", 210.0)}
    assert found["under sjf"] == 100.0


def test_on_fewer_devices_only_what_is_left_of_a_stopped_job_takes_longer() -> None:
    stopped = Progress(attempts=1, ran_s=30.0, work_s=30.0, stopped=90.0)
    state = make_state(waiting=((Job("wide", 70.0, 2), stopped), waiting("after", 2, 80.0)), running=())
    durations = {"wide": exactly(50), "after": exactly(1)}
    changes = _changes(replace(state, durations=durations), "wide", ())
    fewer = next(changed for kind, _, _, changed in changes if kind == "gpus")
    outlook = look_ahead(fewer, "after")
    assert outlook
    assert outlook.start == pytest.approx(100 + 2 * 20)


@pytest.mark.parametrize("draws", [3, 4])
def test_few_simulations_tell_much_about_the_ninetieth_percentile(draws: int) -> None:
    durations = {f"j{n}": Estimate(100, 200, "history") for n in range(40)}
    jobs = tuple(Held(Job(name, 0.0), (FIRST,), 100.0, 1, NO_PROGRESS) for name in durations)
    state = make_state(nodes=tuple(declare("1x40")), waiting=(), running=(), durations=durations)
    state = replace(state, waiting=tuple((held.job, NO_PROGRESS) for held in jobs))
    made = iter([False] * (draws - 1) + [True])
    found = forecast(state, is_late=lambda: next(made)).values()
    assert mean(eta.end_p50 for eta in found) == pytest.approx(200, rel=0.05)
    assert mean(eta.end_p90 for eta in found) == pytest.approx(300, rel=0.1)


def test_a_policy_of_another_package_runs_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Fifo):
        name = "other"

    monkeypatch.setattr(policy, "policies", lambda: {"other": Other})
    state = make_state(policy="other")
    with pytest.raises(PolicyError, match="part of another package"):
        forecast(state)
    assert forecast(replace(state, runs_plugins=True)) == forecast(make_state())


def test_a_higher_priority_is_tried_where_the_policy_uses_it() -> None:
    state = make_state(policy="priority", protection=Protection(min_run_seconds=3600))
    found = {each.label: each.start for each in find_alternatives(state, "small", 210.0, policies=())}
    assert found["with priority + 1"] == 100.0


def test_a_state_survives_being_written_and_read() -> None:
    state = make_state(protection=Protection(), node_health={"n": (False, "drained")}, network="realistic")
    assert PoolState.from_json(state.to_json()) == state
    with pytest.raises(ValueError, match="validation error"):
        PoolState.from_json(b'{"pool": "gpu"}')


def test_jobs_that_may_overtake_are_expected_as_they_came_lately() -> None:
    shorts = tuple((Job(f"s{n}", 10.0 * n, 2, expected_s=8.0), exactly(8)) for n in range(10))
    long = (Job("long", 95.0, 2, expected_s=50.0), NO_PROGRESS)
    state = make_state(waiting=(long,), recent=shorts, durations={"a": exactly(100), "long": exactly(50)})
    alone = forecast(replace(state, policy="sjf", recent=()))["long"]
    assert alone.start_p50 == pytest.approx(160, abs=5)
    among_others = forecast(replace(state, policy="sjf"))["long"]
    assert among_others.start_p50 > 180, "short jobs come every ten seconds, and go first"
    assert forecast(state)["long"] == forecast(replace(state, recent=()))["long"], "nobody overtakes in fifo"


def test_what_may_come_repeats_what_came() -> None:
    shorts = tuple((Job(f"s{n}", 10.0 * n, 1), exactly(8)) for n in range(10))
    state = make_state(recent=shorts)
    later = draw_later(state, "seed")
    assert later == draw_later(state, "seed")
    assert {round(two.job.submitted - one.job.submitted) for one, two in pairwise(later)} == {10}
    assert all(each.job.submitted > 100 for each in later)
    assert not draw_later(replace(state, recent=shorts[:4]), "seed"), "too few to tell"


def test_what_is_years_away_is_not_foreseen_and_hides_nothing_else() -> None:
    state = make_state(durations={"a": exactly(100), "wide": exactly(1e12), "small": exactly(10)})
    assert set(forecast(state)) == {"a"}


def test_several_jobs_are_looked_at_by_one_simulation_which_can_be_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, begun = make_state(), []
    single = {job_id: look_ahead(state, job_id) for job_id in ("wide", "small")}

    def count(*given: object, **more: object) -> Run:
        begun.append(given)
        return begin(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(alternatives, "begin", count)
    assert look_ahead_together(state, ["wide", "small"]) == single
    assert len(begun) == 1
    assert look_ahead_together(state, ["wide", "small"], is_late=lambda: True) == {}
    assert find_places(state) == {"wide": 1, "small": 2}


def test_a_job_that_is_stopped_for_another_one_is_told() -> None:
    state = make_state(
        policy="srtf",
        waiting=(waiting("wide", 2, 70.0, expected_s=5.0),),
        running=(Held(Job("a", 50.0, name="a", expected_s=100.0), (FIRST,), 60.0, 1, NO_PROGRESS),),
        durations={"a": exactly(100), "wide": exactly(5)},
    )
    outlook = look_ahead(state, "wide")
    assert outlook is not None
    assert (outlook.start, outlook.waits_for) == (100.0, (Holder("a", "a", 100.0, is_stopped=True),))

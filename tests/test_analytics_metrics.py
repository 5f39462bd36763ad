"""Every metric on small histories, with numbers worked out by hand."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import ExperimentRan


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


# --- jobs and attempts ---


def test_a_job_that_ran_once(history: History) -> None:
    history.run("a", 0, 6.25, 16.75)
    row = "select state, outcome, attempts, policy, turnaround_s, run_s, queueing_s from job_history"
    assert history.query(row) == [("ended", "completed", 1, "fifo", 16.75, 10.5, 6.25)]


def test_a_preempted_job_adds_up_its_attempts_and_belongs_to_its_last_policy(history: History) -> None:
    history.job("a", 0)
    history.start("a", 10, attempt=1, policy="fifo")
    history.stop("a", 20, attempt=1, outcome="preempted")
    history.start("a", 35, attempt=2, policy="round_robin")
    history.stop("a", 50, attempt=2)
    history.end("a", 50)
    assert history.query(
        "select attempts, policy, epoch(first_started), turnaround_s, run_s, queueing_s from job_history"
    ) == [(2, "round_robin", T + 10, 50.0, 25.0, 25.0)]
    assert history.query("select attempt, outcome, run_s from attempt_history order by attempt") == [
        (1, "preempted", 10.0),
        (2, "completed", 15.0),
    ]


def test_an_open_attempt_counts_until_the_last_fact(history: History) -> None:
    history.device("g0")
    history.job("a", 0)
    history.start("a", 10, "g0")
    history.sample("g0", (12, 50.0), (30, 50.0))
    assert history.query("select state, run_s, turnaround_s, queueing_s from job_history") == [
        ("running", 20.0, None, None)
    ]
    assert history.query("select job_id, gpus, run_s from running_now") == [("a", 1, 20.0)]
    assert history.query("select held_s from allocation where scope = 'overall'") == [(20.0,)]


def test_an_attempt_without_a_recorded_end_ends_where_the_next_starts(history: History) -> None:
    history.job("a", 0)
    history.start("a", 10, attempt=1)
    history.start("a", 25, attempt=2)
    history.stop("a", 30, attempt=2)
    history.end("a", 30)
    assert history.query("select run_s, is_open from attempt_history order by attempt") == [
        (15.0, False),
        (5.0, False),
    ]
    assert history.query("select run_s, queueing_s from job_history") == [(20.0, 10.0)]


def test_a_process_that_ends_after_its_job_does_not_make_queueing_negative(history: History) -> None:
    history.job("a", 0)
    history.start("a", 0)
    history.end("a", 10)
    history.stop("a", 12)
    assert history.query("select turnaround_s, run_s, queueing_s from job_history") == [(10.0, 10.0, 0.0)]


def test_a_run_retried_by_hand_is_running_again(history: History) -> None:
    history.run("a", 0, 5, 10)
    history.start("a", 20, attempt=2)
    history.job("b", 26)
    assert history.query("select job_id, attempt, run_s from running_now") == [("a", 2, 6.0)]
    assert history.query("select state from job_history order by job_id") == [("running",), ("waiting",)]


def test_a_retried_run_has_its_last_outcome(history: History) -> None:
    history.run("a", 0, 5, 10)
    history.start("a", 20, attempt=2)
    history.stop("a", 26, attempt=2, outcome="failed")
    history.end("a", 26, "failed")
    found = history.query("select outcome, attempts, turnaround_s, run_s, queueing_s from job_history")
    assert found == [("failed", 2, 26.0, 11.0, 15.0)]


def test_waiting_jobs_have_waited_until_the_last_fact_without_their_time_on_devices(history: History) -> None:
    history.job("new", 40)
    history.job("preempted", 0)
    history.start("preempted", 10)
    history.stop("preempted", 25, outcome="preempted")
    history.job("latest", 60)
    assert history.query("select job_id, attempts, waited_s from waiting_now order by submitted") == [
        ("preempted", 1, 45.0),
        ("new", 0, 20.0),
        ("latest", 0, 0.0),
    ]


def test_failures_lists_attempts_and_jobs_without_one(history: History) -> None:
    history.run("fine", 0, 1, 2)
    history.job("broken", 0)
    history.start("broken", 1)
    history.stop("broken", 2, outcome="failed")
    history.end("broken", 2, "failed")
    history.job("huge", 0)
    history.end("huge", 3, "refused")
    history.end("unseen", 4, "refused")  # refused before anything else was noted about it
    assert history.query("select job_id, attempt, outcome from failures order by time") == [
        ("broken", 1, "failed"),
        ("huge", None, "refused"),
        ("unseen", None, "refused"),
    ]


def test_failures_lists_attempts_that_ran_out_of_memory_and_what_became_of_their_jobs(
    history: History,
) -> None:
    for name in ("raised", "given_up"):
        history.job(name, 0)
        history.start(name, 1)
        history.stop(name, 2, outcome="out_of_memory")
    history.start("raised", 3, attempt=2)
    history.stop("raised", 4, attempt=2, outcome="completed")
    history.end("raised", 4, "completed")
    history.end("given_up", 5, "refused")
    assert history.query("select job_id, attempt, outcome from failures order by time, job_id") == [
        ("given_up", 1, "out_of_memory"),
        ("raised", 1, "out_of_memory"),
        ("given_up", None, "refused"),
    ]


def test_a_job_that_never_ran_has_no_turnaround_and_no_queueing_time(history: History) -> None:
    for name, outcome in (("huge", "refused"), ("unwanted", "cancelled")):
        history.job(name, 0)
        history.end(name, 3, outcome)
    assert (
        history.query("select state, turnaround_s, queueing_s, run_s from job_history")
        == [("ended", None, None, 0.0)] * 2
    )


# --- sets of jobs ---


def test_makespan_per_experiment_and_overall(history: History) -> None:
    history.run("a", 0, 5, 30, experiment="first")
    history.run("b", 10, 30, 90, experiment="first")
    history.run("c", 100, 100, 107, experiment="second")
    history.run("live", 50, 60, 80)
    history.job("refused", -500)
    history.end("refused", 500, "refused")
    history.job("waiting", -900)
    assert history.query(
        "select scope, experiment, jobs, makespan_s from makespan order by scope, experiment"
    ) == [
        ("experiment", "first", 2, 90.0),
        ("experiment", "second", 1, 7.0),
        ("overall", None, 4, 107.0),
        ("pool", None, 4, 107.0),
    ]


def test_turnaround_and_queueing_of_a_set(history: History) -> None:
    turnarounds, waits = [], []
    for number, (wait, run) in enumerate([(0, 10), (4, 20), (9, 7), (30, 1), (2, 100)]):
        history.run(f"j{number}", number, number + wait, number + wait + run)
        turnarounds.append(wait + run)
        waits.append(wait)
    history.job("cancelled", 0)
    history.end("cancelled", 1, "cancelled")
    for name, values in (("turnaround", turnarounds), ("queueing", waits)):
        deciles = statistics.quantiles(values, n=10, method="inclusive")
        columns = f"jobs, avg_{name}_s, p50_{name}_s, p90_{name}_s, max_{name}_s"
        assert history.query(f"select {columns} from {name} where scope = 'overall'") == [
            (5, statistics.mean(values), statistics.median(values), pytest.approx(deciles[8]), max(values))
        ]


# --- devices ---


def test_a_shared_device_counts_once_and_a_sick_one_is_not_available(history: History) -> None:
    history.device("g0")
    history.device("g1", at=50, node="n1")
    history.run("a", 0, 10, 30, "g0")
    history.run("b", 0, 20, 40, "g0")  # overlaps a: g0 is held from 10 to 40
    history.run("c", 0, 70, 90, "g0")
    history.health("g0", 60, "sick")
    history.health("g0", 80, "healthy")  # c holds it from 70, but it can be used only from 80
    history.run("d", 0, 60, 100, "g1")
    assert history.query(
        "select device_id, held_s, available_s from allocation where scope = 'device' order by 1"
    ) == [
        ("g0", 40.0, 80.0),
        ("g1", 40.0, 50.0),
    ]
    assert history.query(
        "select node, allocation_percent from allocation where scope = 'node' order by 1"
    ) == [
        ("n0", 50.0),
        ("n1", 80.0),
    ]
    assert history.query(
        "select held_s, available_s, allocation_percent from allocation where scope = 'overall'"
    ) == [(80.0, 130.0, pytest.approx(8000 / 130))]


def test_a_device_that_is_gone_stays_unavailable(history: History) -> None:
    history.device("g0")
    history.run("a", 0, 0, 10, "g0")
    history.health("g0", 20, "gone")
    history.job("last fact", 100)
    assert history.query("select held_s, available_s from allocation where scope = 'overall'") == [
        (10.0, 20.0)
    ]


def test_each_pool_has_its_own_clock(history: History) -> None:
    history.device("g0", pool="old")
    history.run("a", 0, 0, 10, "g0", pool="old")
    history.device("g1", at=1000, pool="new")
    history.run("b", 1000, 1000, 1030, "g1", pool="new")
    history.job("last fact", 1060, pool="new")
    assert history.query(
        "select pool, available_s, allocation_percent from allocation where scope = 'pool' order by pool"
    ) == [
        ("new", 60.0, 50.0),
        ("old", 10.0, 100.0),
    ]


def test_utilization_weighs_each_reading_by_its_duration(history: History) -> None:
    history.device("g0")
    history.device("g1")
    history.sample("g0", (0, 100.0), (1, 0.0), (4, 50.0), (6, 77.0))  # 100 for 1 s, 0 for 3 s, 50 for 2 s
    history.sample("g1", (0, 80.0), (2, None), (5, 20.0), (105, 0.0))  # 80 for 2 s, 20 for 10 s of a long gap
    assert history.query(
        "select device_id, samples, utilization_percent from utilization_by_device order by 1"
    ) == [
        ("g0", 4, pytest.approx(200 / 6)),
        ("g1", 4, pytest.approx(360 / 12)),
    ]
    assert history.query("select node, devices, utilization_percent from utilization_by_node") == [
        ("n0", 2, pytest.approx(560 / 18))
    ]


def test_a_single_reading_is_its_own_mean(history: History) -> None:
    history.device("g0")
    history.sample("g0", (0, 42.0))
    assert history.query("select utilization_percent from utilization_by_device") == [(42.0,)]
    assert history.query("select utilization_percent from utilization_by_minute") == [(42.0,)]


def test_a_reading_across_a_full_minute_is_split(history: History) -> None:
    history.device("g0")
    history.sample("g0", (50, 100.0), (56, 20.0), (64, 60.0), (70, 0.0))
    # first minute: 6 s of 100 and 4 s of 20; second: 4 s of 20 and 6 s of 60
    assert history.query(
        "select epoch(minute), devices, measured_s, utilization_percent from utilization_by_minute order by 1"
    ) == [(T, 1, 10.0, pytest.approx(68.0)), (T + 60, 1, 10.0, pytest.approx(44.0))]


# --- policies ---


def test_policy_periods_ignore_refused_swaps(history: History) -> None:
    history.job("first fact", 0)
    history.swap(10, "", "fifo")
    history.swap(20, "fifo", "srtf", error="no such policy")
    history.swap(30, "fifo", "round_robin")
    history.swap(45, "round_robin", "fifo")
    history.job("last fact", 50)
    periods = (
        "select policy, epoch(since) - {0}, epoch(until) - {0}, in_force_s from policy_periods order by since"
    )
    assert history.query(periods.format(T)) == [
        ("fifo", 10, 30, 20.0),
        ("round_robin", 30, 45, 15.0),
        ("fifo", 45, 50, 5.0),
    ]


def test_policy_periods_before_the_first_swap(history: History) -> None:
    history.job("first fact", 0)
    history.swap(30, "fifo", "round_robin")
    history.job("last fact", 50)
    assert history.query("select policy, in_force_s from policy_periods order by since") == [
        ("fifo", 30.0),
        ("round_robin", 20.0),
    ]


def test_policy_periods_without_any_swap(history: History) -> None:
    history.run("a", 0, 5, 20, policy="fifo")
    assert history.query("select policy, in_force_s from policy_periods") == [("fifo", 20.0)]


def test_policy_summary_leaves_idle_time_out(history: History) -> None:
    history.device("g0", at=-1000)
    history.device("g1", at=-1000)
    history.swap(-1000, "", "fifo")
    history.run("a", 0, 0, 20, "g0", policy="fifo")
    history.run("b", 0, 10, 30, "g1", policy="fifo")
    history.swap(40, "fifo", "round_robin")
    history.run("c", 30, 40, 60, "g0", "g1", policy="round_robin")
    history.job("d", 50)
    history.start("d", 60, "g0", policy="round_robin")
    history.stop("d", 70, outcome="failed")
    history.end("d", 70, "failed")
    history.sample(
        "g0", (0, 90.0), (10, 30.0), (20, 0.0), (30, 0.0), (40, 80.0), (50, 80.0), (60, 20.0), (70, 99.0)
    )
    history.sample("g1", (2000, 100.0), (2010, 100.0))  # long after the last end
    columns = (
        "policy, jobs, finished, completed, makespan_s, avg_turnaround_s, p50_turnaround_s, p90_turnaround_s,"
        " avg_queueing_s, allocation_percent, utilization_percent"
    )
    assert history.query(f"select {columns} from policy_summary order by policy") == [
        # in force over work from 0 to 40: two devices, held for 20 s each; 90 and 30 for 10 s, 0 for 20 s
        ("fifo", 2, 2, 2, 30.0, 25.0, 25.0, 29.0, 5.0, 50.0, pytest.approx(30.0)),
        # in force from 40 to 70, the last end: held 20 + 20 + 10 of 60 s; 80 for 20 s, 20 for 10 s
        ("round_robin", 2, 2, 1, 40.0, 25.0, 25.0, 29.0, 10.0, pytest.approx(5000 / 60), pytest.approx(60.0)),
    ]


def test_experiment_summary_is_clipped_to_the_experiment(history: History) -> None:
    history.device("g0")
    history.swap(0, "", "fifo")
    history.run("live", 0, 0, 100, "g0", policy="fifo")
    history.run("x", 200, 210, 230, "g0", policy="fifo", experiment="bench")
    history.swap(240, "fifo", "round_robin")
    history.run("y", 235, 245, 255, "g0", policy="round_robin", experiment="bench")
    history.run("later", 300, 300, 400, "g0", policy="round_robin")
    columns = "policy, jobs, makespan_s, avg_queueing_s, allocation_percent"
    assert history.query(f"select {columns} from experiment_summary order by policy") == [
        ("fifo", 1, 30.0, 10.0, 50.0),
        ("round_robin", 1, 20.0, 10.0, pytest.approx(1000 / 15)),
    ]


def test_experiment_that_was_disturbed_says_so(history: History) -> None:
    for experiment, disturbed in (("good", ""), ("bad", "The scheduler block was edited.")):
        history.run(experiment, 0, 10, 30, "g0", experiment=experiment)
        history.record(ExperimentRan(experiment, T, "{}", disturbed))
    history.run("unfinished", 0, 10, 30, "g0", experiment="unfinished")
    assert history.query("select experiment, disturbed from experiment_summary order by 1") == [
        ("bad", "The scheduler block was edited."),
        ("good", None),
        ("unfinished", None),
    ]

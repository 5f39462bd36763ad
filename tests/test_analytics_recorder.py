"""The recorder: every fact is loaded unchanged and once, also when processes are killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from analytics_store import Store, T, job, run, run_and_kill, sample, wait_for_result

from gpu_flows.analytics.fact_spool import Spool
from gpu_flows.analytics.facts import (
    FACTS,
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    Decided,
    DeviceEvent,
    DeviceSeen,
    ExperimentRan,
    Fact,
    FeaturesSeen,
    Forecast,
    JobEnded,
    JobQueued,
    LearningStep,
    MemoryPeak,
    NodeSeen,
    Offered,
    Predicted,
    ProgressReported,
    ProtectionSet,
    Regretted,
    Sampled,
    SavedWork,
    ShadowDecided,
    ShadowProjected,
    Swapped,
)

ONE_OF_EACH: tuple[Fact, ...] = (
    job(1),
    JobEnded("job-1", T + 9, "completed"),
    AttemptStarted("job-1", 1, "fifo", "process", '["n0"]', T + 1, T + 2),
    AttemptEnded("job-1", 1, T + 9, "completed", 0),
    AttemptInterrupted("job-1", 1, T + 3, T + 4, "preempted", "priority", '["job-2"]'),
    SavedWork("job-1", 1, 2, 0.5, 1_000, T + 3, 7, None, None, None, 0.25),
    Allocated("job-1", 1, "GPU-1", "n0", 11_000, T + 2),
    JobQueued(
        "job-1", T + 1, "night", 2, "mlp", '["n*"]', "[]", True, "", 1, 4, False, 2.5, 512, 900, 60.0, "[]"
    ),
    Decided(T + 1, "pool", "fifo", 1, 0, 1, 35.5),
    Offered(T + 1, "pool", "job-1", "dally", "rack", False, 0.5, None, 1.25, 0.75),
    Swapped(T, "pool", "", "fifo", "{}"),
    ProtectionSet(T, "pool", 60.0, 10),
    NodeSeen(T, "pool", "n0", "default", 16.0, 64_000, "[[3, [0, 1]]]", 1),
    DeviceSeen("GPU-1", "pool", "n0", 0, "GTX 1080 Ti", 11_000, T),
    DeviceEvent(T + 3, "GPU-1", "n0", "sick", "Xid 79"),
    sample(5),
    ExperimentRan("bench", T, '{"jobs": 1}'),
    FeaturesSeen("job-1", "train mlp", '{"epochs": 3}', '["memory_mb"]'),
    Predicted("job-1", T + 1, "memory_mb", "", 900.0, 1_000.0, "history", "v1", "3 runs"),
    MemoryPeak("job-1", 1, "GPU-1", 950.5, "nvml"),
    ProgressReported("job-1", 1, T + 5, 0.5, 4.0, "tqdm"),
    LearningStep("night", 1, 512, T + 6, -0.25, 90.5, 100.0, 1.5, None, 12.0),
    Forecast(T + 1, "pool", "job-1", T + 2, T + 3, T + 9, T + 12, "fifo"),
    ShadowDecided(T + 1, "pool", "fifo", "srtf", True, False, 1, 0, 0.5, 120.5, 2, "it is slow"),
    ShadowProjected(T + 1, "pool", "fifo", "srtf", 3, 90.5, 200.0),
    Regretted(T + 9, "pool", T, T + 8, "fifo", "srtf", 12.5, 3),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


# --- the way of a fact ---


def test_every_kind_of_fact_is_loaded_unchanged(store: Store) -> None:
    assert {type(fact) for fact in ONE_OF_EACH} == set(FACTS)
    recorder = store.recorder()
    recorder.write(*ONE_OF_EACH)
    assert recorder.drain()
    for fact in ONE_OF_EACH:
        columns = store.query(f"select column_name, column_type from (describe {fact.table})")
        selected = ", ".join(f"epoch({name})" if "TIME ZONE" in kind else name for name, kind in columns)
        values = tuple(getattr(fact, name) for name, _ in columns)
        assert store.query(f"select {selected} from {fact.table}") == [values]
    assert store.spooled() == []


def test_odd_values_do_not_stop_other_facts(store: Store) -> None:
    recorder = store.recorder()
    odd = "quote ' \" and \\ newline \n tab \t nul \0 lone \ud800 emoji 🙂"
    recorder.write(job(1, odd), Sampled(T, "GPU-1", float("nan"), float("inf"), 1e308, -0.0))
    recorder.write(Sampled(T, "GPU-1", "lots", None, None, None))  # type: ignore[arg-type]
    assert recorder.drain()
    assert store.query("select name from jobs") == [(odd.replace("\ud800", "?"),)]
    assert store.query("select utilization, memory_used_mb, power_w from samples order by power_w") == [
        (None, None, 1e308),
        (None, None, None),
    ]


def test_second_copies_change_nothing(store: Store) -> None:
    recorder = store.recorder()
    recorder.write(*ONE_OF_EACH)
    recorder.drain()
    recorder.write(
        job(1, name="another name"),
        JobEnded("job-1", T + 9, "failed"),
        AttemptStarted("job-1", 1, "other", "docker", "[]", T, T),
        AttemptEnded("job-1", 1, T + 99, "lost"),
        Allocated("job-1", 1, "GPU-1", "n9", 1, T),
        DeviceSeen("GPU-1", "pool", "n9", 9, "other", 1, T + 99),
        ExperimentRan("bench", T + 99, "{}"),
        job(2, "first copy"),
        job(2, "second copy of the same batch"),
    )
    recorder.drain()
    assert store.query("select name from jobs order by job_id") == [("job",), ("first copy",)]
    assert store.query("select outcome from job_ends") == [("completed",)]
    assert store.query("select policy from attempts") == [("fifo",)]
    assert store.query("select outcome from attempt_ends") == [("completed",)]
    assert store.query("select node from allocations") == [("n0",)]
    assert store.query("select node from devices") == [("n0",)]
    assert store.query("select description from experiments") == [('{"jobs": 1}',)]


def test_a_started_recorder_loads_facts_by_itself(store: Store) -> None:
    recorder = store.recorder(drain_every=0.02)
    recorder.start()
    recorder.write(job(1), sample(1))
    wait_for_result(store, "select (select count(*) from jobs), (select count(*) from samples)", (1, 1))


def test_a_started_recorder_makes_the_warehouse_before_the_first_fact(store: Store) -> None:
    store.recorder().start()
    wait_for_result(store, "select count(*) from job_history", (0,))


def test_closing_loads_the_last_facts(store: Store) -> None:
    recorder = store.recorder()
    recorder.start()
    recorder.write(*(job(number) for number in range(50)))
    recorder.close()
    assert store.count("jobs") == 50
    assert store.spooled() == []


def test_a_process_that_does_not_close_its_recorder_loses_nothing(store: Store) -> None:
    for _ in range(3):
        assert run(store, "recorder.start(); recorder.write(*facts)", drain_every=0.001) == 0
    assert (store.count("jobs"), store.count("samples")) == (1, 3)
    assert store.spooled() == []


def test_writing_from_many_threads_loses_nothing(store: Store) -> None:
    recorder = store.recorder(drain_every=0.01)
    recorder.start()

    def work(first: int) -> None:
        for number in range(first, first + 200):
            recorder.write(job(number), sample(number))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 800, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert (store.count("jobs"), store.count("samples")) == (800, 800)


# --- files of the dead ---


def test_flushed_facts_outlive_their_process(store: Store) -> None:
    run_and_kill(store, "recorder.write(*facts); recorder.flush()")
    assert [name.rpartition(".")[2] for name in store.spooled()] == ["open"]
    assert store.recorder().drain()
    assert (store.count("jobs"), store.count("samples")) == (1, 1)


def test_facts_about_jobs_reach_the_disk_without_a_flush(store: Store) -> None:
    """The thread wakes for them; what may be lost are samples of the last second."""
    run_and_kill(
        store,
        "recorder.start(); time.sleep(0.2); recorder.write(*facts)\n"
        "while not any(path.stat().st_size for path in spool.glob('*.open')): time.sleep(0.01)",
        drain_every=1000,
    )
    assert store.recorder().drain()
    assert store.count("jobs") == 1


def test_an_incomplete_last_line_is_dropped(store: Store) -> None:
    run_and_kill(store, "recorder.write(*facts); recorder.flush()")
    [orphan] = store.spool.glob("*.open")
    with orphan.open("ab") as file:
        file.write(b'{"table":"jobs","job_id":"torn","po')
    assert store.recorder().drain()
    assert store.query("select job_id from jobs") == [("job-1",)]
    assert store.spooled() == []


def test_an_orphan_without_a_complete_line_is_removed(store: Store) -> None:
    store.spool.mkdir()
    (store.spool / "00000000000000000001-aaaaaaaa.open").write_bytes(b'{"table":"jobs"')
    assert store.recorder().drain()
    assert store.spooled() == []


def test_the_file_of_a_running_recorder_is_not_adopted(store: Store) -> None:
    alive = store.recorder()
    alive.write(job(1))
    alive.flush()
    other = store.recorder()
    other.write(job(2))
    assert other.drain()
    assert store.query("select job_id from jobs") == [("job-2",)]
    alive.close()
    assert store.count("jobs") == 2


def test_unreadable_lines_are_kept_in_a_file(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    recorder = store.recorder()
    recorder.write(job(1), job(2))
    recorder.flush()
    [path] = store.spool.glob("*.open")
    with path.open("ab") as file:
        file.write(b'\xff\x00 not json\n{"table":"from_the_future","x":1}\n')
    assert recorder.drain()
    assert store.count("jobs") == 2
    [kept] = store.spool.iterdir()
    assert kept.suffix == ".unreadable"
    assert len(kept.read_text(encoding="utf-8").splitlines()) == 2
    assert "2 spooled lines could not be read" in caplog.text


def test_a_file_that_was_committed_but_not_removed_is_not_loaded_again(store: Store) -> None:
    spool = Spool(store.spool)
    spool.append([sample(1), sample(2)])
    spool.rotate()
    [path] = spool.ready()
    text = path.read_bytes()
    store.recorder().drain()
    path.write_bytes(text)  # as if its remover had been killed a moment earlier
    store.recorder().drain()
    assert store.count("samples") == 2
    assert store.spooled() == []


def test_an_emptied_spool_directory_does_not_stop_the_recorder(store: Store) -> None:
    recorder = store.recorder()
    recorder.write(job(1))
    recorder.flush()
    for path in store.spool.iterdir():
        path.unlink()
    store.spool.rmdir()
    recorder.write(job(2))
    assert recorder.drain()
    assert store.query("select job_id from jobs") == [("job-2",)]


def test_a_time_out_of_range_does_not_stop_other_facts(tmp_path: Path) -> None:
    """Nanoseconds for seconds, say: the value is left out, and whatever comes after it is recorded."""
    store = Store(tmp_path)
    recorder = store.recorder()
    recorder.write(AttemptEnded("a", 1, 1.7e18, "completed"))
    recorder.write(job(1))
    recorder.close()
    assert not recorder.trouble
    assert store.query("select ended from attempt_ends") == [(None,)]
    assert store.count("jobs") == 1

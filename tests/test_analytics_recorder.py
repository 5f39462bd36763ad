"""The recorder: every fact arrives as it was, once, whoever dies on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from analytics_store import Place, T, die_after, job, run, sample, until_answered

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
    JobEnded,
    Sampled,
    SavedWork,
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
    Decided(T + 1, "pool", "fifo", 1, 0, 1, 35.5),
    Swapped(T, "pool", "", "fifo", "{}"),
    DeviceSeen("GPU-1", "pool", "n0", 0, "GTX 1080 Ti", 11_000, T),
    DeviceEvent(T + 3, "GPU-1", "n0", "sick", "Xid 79"),
    sample(5),
    ExperimentRan("bench", T, '{"jobs": 1}'),
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for recorder in place.made:
        recorder.close()


# --- the way of a fact ---


def test_every_kind_of_fact_arrives_as_it_was(place: Place) -> None:
    assert {type(fact) for fact in ONE_OF_EACH} == set(FACTS)
    recorder = place.recorder()
    recorder.write(*ONE_OF_EACH)
    assert recorder.drain()
    for fact in ONE_OF_EACH:
        columns = place.ask(f"select column_name, column_type from (describe {fact.table})")
        selected = ", ".join(f"epoch({name})" if "TIME ZONE" in kind else name for name, kind in columns)
        values = tuple(getattr(fact, name) for name, _ in columns)
        assert place.ask(f"select {selected} from {fact.table}") == [values]
    assert place.spooled() == []


def test_odd_values_neither_fail_nor_stop_others(place: Place) -> None:
    recorder = place.recorder()
    odd = "quote ' \" and \\ newline \n tab \t nul \0 lone \ud800 emoji 🙂"
    recorder.write(job(1, odd), Sampled(T, "GPU-1", float("nan"), float("inf"), 1e308, -0.0))
    recorder.write(Sampled(T, "GPU-1", "lots", None, None, None))  # type: ignore[arg-type]
    assert recorder.drain()
    assert place.ask("select name from jobs") == [(odd.replace("\ud800", "?"),)]
    assert place.ask("select utilization, memory_used_mb, power_w from samples order by power_w") == [
        (None, None, 1e308),
        (None, None, None),
    ]


def test_second_copies_change_nothing(place: Place) -> None:
    recorder = place.recorder()
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
    assert place.ask("select name from jobs order by job_id") == [("job",), ("first copy",)]
    assert place.ask("select outcome from job_ends") == [("completed",)]
    assert place.ask("select policy from attempts") == [("fifo",)]
    assert place.ask("select outcome from attempt_ends") == [("completed",)]
    assert place.ask("select node from allocations") == [("n0",)]
    assert place.ask("select node from devices") == [("n0",)]
    assert place.ask("select description from experiments") == [('{"jobs": 1}',)]


def test_a_started_recorder_needs_no_help(place: Place) -> None:
    recorder = place.recorder(drain_every=0.02)
    recorder.start()
    recorder.write(job(1), sample(1))
    until_answered(place, "select (select count(*) from jobs), (select count(*) from samples)", (1, 1))


def test_a_started_recorder_makes_the_warehouse_before_the_first_fact(place: Place) -> None:
    place.recorder().start()
    until_answered(place, "select count(*) from job_history", (0,))


def test_closing_drains_what_was_written_last(place: Place) -> None:
    recorder = place.recorder()
    recorder.start()
    recorder.write(*(job(number) for number in range(50)))
    recorder.close()
    assert place.count("jobs") == 50
    assert place.spooled() == []


def test_a_process_that_forgets_to_close_ends_well_and_loses_nothing(place: Place) -> None:
    for _ in range(3):
        assert run(place, "recorder.start(); recorder.write(*facts)", drain_every=0.001) == 0
    assert (place.count("jobs"), place.count("samples")) == (1, 3)
    assert place.spooled() == []


def test_writing_from_many_threads_loses_nothing(place: Place) -> None:
    recorder = place.recorder(drain_every=0.01)
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
    assert (place.count("jobs"), place.count("samples")) == (800, 800)


# --- files of the dead ---


def test_flushed_facts_outlive_their_process(place: Place) -> None:
    die_after(place, "recorder.write(*facts); recorder.flush()")
    assert [name.rpartition(".")[2] for name in place.spooled()] == ["open"]
    assert place.recorder().drain()
    assert (place.count("jobs"), place.count("samples")) == (1, 1)


def test_facts_about_jobs_reach_the_disk_without_being_asked(place: Place) -> None:
    """The thread wakes for them; what may be lost are samples of the last second."""
    die_after(
        place,
        "recorder.start(); time.sleep(0.2); recorder.write(*facts)\n"
        "while not any(path.stat().st_size for path in spool.glob('*.open')): time.sleep(0.01)",
        drain_every=1000,
    )
    assert place.recorder().drain()
    assert place.count("jobs") == 1


def test_a_torn_last_line_is_dropped(place: Place) -> None:
    die_after(place, "recorder.write(*facts); recorder.flush()")
    [orphan] = place.spool.glob("*.open")
    with orphan.open("ab") as file:
        file.write(b'{"table":"jobs","job_id":"torn","po')
    assert place.recorder().drain()
    assert place.ask("select job_id from jobs") == [("job-1",)]
    assert place.spooled() == []


def test_an_orphan_with_nothing_whole_disappears(place: Place) -> None:
    place.spool.mkdir()
    (place.spool / "00000000000000000001-aaaaaaaa.open").write_bytes(b'{"table":"jobs"')
    assert place.recorder().drain()
    assert place.spooled() == []


def test_the_file_of_a_living_recorder_is_left_alone(place: Place) -> None:
    alive = place.recorder()
    alive.write(job(1))
    alive.flush()
    other = place.recorder()
    other.write(job(2))
    assert other.drain()
    assert place.ask("select job_id from jobs") == [("job-2",)]
    alive.close()
    assert place.count("jobs") == 2


def test_a_line_that_makes_no_sense_is_kept_for_a_human(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = place.recorder()
    recorder.write(job(1), job(2))
    recorder.flush()
    [path] = place.spool.glob("*.open")
    with path.open("ab") as file:
        file.write(b'\xff\x00 not json\n{"table":"from_the_future","x":1}\n')
    assert recorder.drain()
    assert place.count("jobs") == 2
    [kept] = place.spool.iterdir()
    assert kept.suffix == ".unreadable"
    assert len(kept.read_text(encoding="utf-8").splitlines()) == 2
    assert "2 spooled lines could not be read" in caplog.text


def test_a_file_that_was_committed_but_not_removed_does_not_come_twice(place: Place) -> None:
    spool = Spool(place.spool)
    spool.append([sample(1), sample(2)])
    spool.rotate()
    [path] = spool.ready()
    text = path.read_bytes()
    place.recorder().drain()
    path.write_bytes(text)  # as if its remover had been killed a moment earlier
    place.recorder().drain()
    assert place.count("samples") == 2
    assert place.spooled() == []


def test_an_emptied_spool_directory_does_not_stop_the_recorder(place: Place) -> None:
    recorder = place.recorder()
    recorder.write(job(1))
    recorder.flush()
    for path in place.spool.iterdir():
        path.unlink()
    place.spool.rmdir()
    recorder.write(job(2))
    assert recorder.drain()
    assert place.ask("select job_id from jobs") == [("job-2",)]


def test_a_time_that_is_none_stops_nobody(tmp_path: Path) -> None:
    """Nanoseconds for seconds, say: the value is left out, and whatever comes after it is recorded."""
    place = Place(tmp_path)
    recorder = place.recorder()
    recorder.write(AttemptEnded("a", 1, 1.7e18, "completed"))
    recorder.write(job(1))
    recorder.close()
    assert not recorder.trouble
    assert place.ask("select ended from attempt_ends") == [(None,)]
    assert place.count("jobs") == 1

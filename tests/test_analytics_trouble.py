"""The recorder when something fails: facts wait in the place before it, and the reason is reported."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from analytics_store import Reader, Store, T, job, run_and_kill, sample

from gpu_flows.analytics import recorder as recorder_module
from gpu_flows.analytics.recorder import Recorder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def test_facts_wait_while_another_process_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "WAIT_FOR_READER_S", 0.0)
    recorder = store.recorder()
    recorder.write(job(1))
    recorder.drain()
    with Reader(store.database):
        for number in range(2, 7):
            recorder.write(job(number))
            assert not recorder.drain()
        assert "is in use by process" in recorder.trouble
        assert len(store.spooled()) == 1  # one file that grows, not one per try
    assert recorder.drain()
    assert recorder.trouble == ""
    assert store.count("jobs") == 6


def test_a_reader_in_the_same_process_counts_as_well(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "WAIT_FOR_READER_S", 0.0)
    recorder = store.recorder()
    recorder.drain()
    with duckdb.connect(str(store.database), read_only=True):
        recorder.write(job(1))
        assert not recorder.drain()
        assert "another connection of this process" in recorder.trouble
    assert recorder.drain()


def test_a_warehouse_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    recorder = Recorder(tmp_path / "file" / "warehouse.duckdb", tmp_path / "spool")
    recorder.write(job(1))
    assert not recorder.drain()
    assert "cannot be written" in recorder.trouble
    recorder.close()
    recovered = Store(tmp_path)
    assert recovered.recorder().drain()
    assert recovered.count("jobs") == 1


def test_a_read_only_warehouse(store: Store) -> None:
    with mounted(store.database.parent / "disk", "8m") as disk:
        elsewhere = Recorder(disk / "warehouse.duckdb", store.spool)
        assert elsewhere.drain(), elsewhere.trouble
        remount(disk, "ro")
        elsewhere.write(job(1))
        assert not elsewhere.drain()
        assert "Read-only file system" in elsewhere.trouble
        assert "permissions" in elsewhere.trouble
        remount(disk, "rw")
        assert elsewhere.drain(), elsewhere.trouble
        assert elsewhere.trouble == ""
        elsewhere.close()


def test_a_full_disk_under_the_warehouse(store: Store) -> None:
    with mounted(store.database.parent / "disk", "6m") as disk:
        recorder = Recorder(disk / "warehouse.duckdb", store.spool)
        assert recorder.drain()
        filler = fill(disk)
        recorder.write(*(job(number, os.urandom(2000).hex()) for number in range(500)))
        assert not recorder.drain()
        assert "No space left" in recorder.trouble
        filler.unlink()
        assert recorder.drain(), recorder.trouble
        recorder.close()
        store.database = disk / "warehouse.duckdb"
        assert store.count("jobs") == 500


def test_a_full_disk_under_the_spool(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_IN_MEMORY", 1000)
    with mounted(store.spool, "1m") as disk:
        recorder = store.recorder()
        recorder.write(job(0), sample(0))
        assert recorder.flush()
        filler = fill(disk)
        for number in range(1, 201):
            recorder.write(job(number), *(sample(10 * number + step) for step in range(10)))
        assert not recorder.flush()
        assert "No space left" in recorder.trouble
        assert "samples were dropped" in recorder.trouble
        filler.unlink()
        assert recorder.drain()
        assert recorder.trouble == ""
        assert store.count("jobs") == 201
        [(kept, oldest, newest)] = store.query(
            "select count(*), min(epoch(time)), max(epoch(time)) from samples"
        )
        assert kept < 1000
        assert (oldest, newest) == (T, T + 2009)  # the first was safe before, and the last is the newest
        recorder.close()


def test_a_disk_that_fills_in_the_middle_of_a_batch_leaves_no_half_line(store: Store) -> None:
    """A file size limit refuses a write half way, as a full disk does, without needing a disk."""
    run_and_kill(
        store,
        "import resource\n"
        "recorder.write(*facts); recorder.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))\n"
        "recorder.write(*[facts[0]] * 100); refused = not recorder.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "recorder.write(*facts[1:] * 3); recorder.flush()\n"
        "assert refused and not recorder.trouble",
    )
    assert store.recorder().drain()
    assert (store.count("jobs"), store.count("samples")) == (1, 4)
    assert store.spooled() == []


def test_a_damaged_warehouse_is_moved_and_a_new_one_created(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = store.recorder()
    recorder.write(job(1))
    recorder.drain()
    damage(store.database)
    recorder.write(job(2))
    assert recorder.drain()
    assert store.query("select job_id from jobs") == [("job-2",)]
    [aside] = store.database.parent.glob("warehouse.duckdb.damaged-*[0-9]")
    assert aside.stat().st_size > 0
    assert aside.with_name(aside.name + ".reason.txt").read_text().strip()
    assert any(
        record.levelno == logging.CRITICAL and str(aside) in record.message for record in caplog.records
    )


def test_a_deleted_warehouse_is_created_again(store: Store) -> None:
    recorder = store.recorder()
    recorder.write(job(1))
    recorder.drain()
    store.database.unlink()
    recorder.write(job(2))
    assert recorder.drain()
    assert store.query("select job_id from job_history") == [("job-2",)]


def test_a_new_instance_is_used_after_a_fatal_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = store.recorder()
    recorder.drain()

    class Broken:
        def execute(self, *_: object) -> None:
            raise duckdb.FatalException("FATAL Error: the database has been invalidated")

        def close(self) -> None: ...

    monkeypatch.setattr(recorder._warehouse, "_instance", Broken())
    recorder.write(job(1))
    assert not recorder.drain()
    assert "invalidated" in recorder.trouble
    assert recorder.drain()
    assert recorder.trouble == ""
    assert store.count("jobs") == 1


def damage(database: Path) -> None:
    """What a dying disk does: the first block of the file is no longer what was written."""
    with database.open("r+b") as file:
        file.seek(12_288 + 1000)
        file.write(os.urandom(2000))


class mounted:
    """A small disk of its own, for those who may mount one."""

    def __init__(self, folder: Path, size: str) -> None:
        self._folder, self._size = folder, size

    def __enter__(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self._folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting a small disk needs root")
        return self._folder

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self._folder)], check=True)


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler

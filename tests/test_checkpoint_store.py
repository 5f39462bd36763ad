"""Checkpoint files are complete or skipped, and no other file in their directory is trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_flows.checkpoints.contract import JOURNAL, Entry, read_journal, write_entry
from gpu_flows.checkpoints.store import CheckpointStore, ContentWriter, UnusableCheckpoint


def writer(content: bytes) -> Callable[[ContentWriter], None]:
    def write(output: ContentWriter) -> None:
        output.write(content)

    return write


def load_newest(directory: Path) -> bytes | None:
    return CheckpointStore(directory).load_newest(lambda content: content)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_is_loaded_and_the_last_few_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "made" / "on demand", keep=3)
    assert load_newest(store.directory) is None
    for number in range(1, 8):
        saved = store.save(writer(f"number {number}".encode()))
        assert saved.number == number
        assert load_newest(store.directory) == f"number {number}".encode()
    assert files(store.directory) == [f"checkpoint-{number:012}.pt" for number in (5, 6, 7)]
    last = store.directory / files(store.directory)[-1]
    assert stat.S_IMODE(last.stat().st_mode) == 0o600
    assert last.stat().st_size == saved.bytes


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda whole: b"", "too short"),
        (lambda whole: whole[:20], "too short"),
        (lambda whole: whole[:-1], "should have 10 bytes of content and has 9"),
        (lambda whole: whole + b"x", "should have 10 bytes of content and has 11"),
        (lambda whole: whole[:-1] + b"x", "checksum"),
        (lambda whole: bytes(len(whole)), "not written by this library"),
        (lambda whole: b"PK\x03\x04" * 100, "not written by this library"),
    ],
)
def test_a_damaged_checkpoint_is_skipped(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(writer(b"before ..."))
    store.save(writer(b"afterwards"))
    damaged = tmp_path / files(tmp_path)[-1]
    damaged.write_bytes(damage(damaged.read_bytes()))
    assert load_newest(tmp_path) == b"before ..."
    assert reason in caplog.text


def test_a_checkpoint_that_the_caller_cannot_load_is_skipped(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for content in (b"good", b"bad"):
        store.save(writer(content))

    def picky(content: bytes) -> bytes:
        if content == b"bad":
            raise UnusableCheckpoint("it is bad")
        return content

    assert store.load_newest(picky) == b"good"


def test_damaged_checkpoints_do_not_count_as_kept_ones(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(writer(b"whole"))
    for number in (2, 3, 999_999_999_999):
        (tmp_path / f"checkpoint-{number:012}.pt").write_bytes(b"torn")
    store = CheckpointStore(tmp_path, keep=2)
    assert store.load_newest(lambda content: content) == b"whole"
    store.save(writer(b"next"))
    assert files(tmp_path) == ["checkpoint-000000000001.pt", "checkpoint-000000000004.pt"]
    assert load_newest(tmp_path) == b"next"


def test_a_failed_save_leaves_no_file_and_keeps_the_older_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(writer(b"whole"))

    def full_disk(place: ContentWriter) -> None:
        place.write(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        store.save(full_disk)
    assert files(tmp_path) == ["checkpoint-000000000001.pt"]
    assert load_newest(tmp_path) == b"whole"


def test_the_partial_file_of_a_killed_save_is_ignored_and_deleted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".saving-0123").write_bytes(b"half")
    assert load_newest(tmp_path) is None
    CheckpointStore(tmp_path).save(writer(b"whole"))
    assert files(tmp_path) == ["checkpoint-000000000001.pt"]


def test_a_file_is_renamed_only_after_its_content_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)

        def recorded(
            *args: object, name: str = name, real: Callable[..., None] = real, **more: object
        ) -> None:
            kind = "directory" if name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else "file"  # type: ignore[call-overload]
            done.append(f"{name} {kind}")
            real(*args, **more)

        monkeypatch.setattr(os, name, recorded)
    CheckpointStore(tmp_path).save(writer(b"whole"))
    assert done == ["fsync file", "rename file", "fsync directory"]


# ---- other files in the directory


def plant_link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def plant_fifo(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def plant_directory(place: Path, outside: Path) -> None:
    place.mkdir()


def plant_giant(place: Path, outside: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 43)  # sparse: it uses no space on the disk


def plant_giant_with_header(place: Path, outside: Path) -> None:
    with place.open("wb") as file:
        file.write(outside.read_bytes()[:16] + ((1 << 43) - 56).to_bytes(8, "little"))
        file.truncate(1 << 43)


@pytest.mark.parametrize(
    "plant", [plant_link, plant_fifo, plant_directory, plant_giant, plant_giant_with_header]
)
def test_only_regular_files_of_a_plausible_size_are_read(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    CheckpointStore(elsewhere).save(writer(b"a complete checkpoint of another job"))
    outside = elsewhere / files(elsewhere)[0]
    before = outside.read_bytes()
    CheckpointStore(here).save(writer(b"ours"))
    plant(here / "checkpoint-000000000002.pt", outside)
    plant(here / ".saving-0123", outside)

    store = CheckpointStore(here)
    assert store.load_newest(lambda content: content) == b"ours"
    store.save(writer(b"ours again"))
    assert load_newest(here) == b"ours again"
    assert outside.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["checkpoint-..%2f.pt", "..pt", "checkpoint-1.pt", "checkpoint-٠٠٠٠٠٠٠٠٠٠٠٢.pt", "model.pt"]
)
def test_files_with_other_names_are_ignored(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(writer(b"ours"))
    (tmp_path / name).write_bytes((tmp_path / files(tmp_path)[-1]).read_bytes()[:-4] + b"them")
    assert load_newest(tmp_path) == b"ours"
    store.save(writer(b"again"))
    assert (tmp_path / name).exists()


def test_a_journal_that_is_a_link_or_a_fifo_is_not_opened(tmp_path: Path) -> None:
    entry = Entry("saved", 1, 0.0)
    outside = tmp_path / "outside"
    outside.write_text("")
    (tmp_path / JOURNAL).symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        write_entry(tmp_path, entry)
    assert (outside.read_text(), read_journal(tmp_path)) == ("", [])
    (tmp_path / JOURNAL).unlink()
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(OSError, match="No such device"):
        write_entry(tmp_path, entry)
    assert read_journal(tmp_path) == []

"""Checkpoint files: whole or passed over, and nothing that lies in their directory is trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_flows.checkpoints.contract import JOURNAL, Entry, read_journal, write_entry
from gpu_flows.checkpoints.store import CheckpointStore, ContentWriter, UnusableCheckpoint


def writes(content: bytes) -> Callable[[ContentWriter], None]:
    def write(place: ContentWriter) -> None:
        place.write(content)

    return write


def newest(directory: Path) -> bytes | None:
    return CheckpointStore(directory).load_newest(lambda content: content)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_is_loaded_and_the_last_few_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "made" / "on demand", keep=3)
    assert newest(store.directory) is None
    for number in range(1, 8):
        saved = store.save(writes(f"number {number}".encode()))
        assert saved.number == number
        assert newest(store.directory) == f"number {number}".encode()
    assert files(store.directory) == [f"checkpoint-{number:012}.pt" for number in (5, 6, 7)]
    last = store.directory / files(store.directory)[-1]
    assert stat.S_IMODE(last.stat().st_mode) == 0o600
    assert last.stat().st_size == saved.bytes


@pytest.mark.parametrize(
    ("damage", "why"),
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
def test_a_damaged_one_is_passed_over(
    tmp_path: Path, damage: Callable[[bytes], bytes], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(writes(b"before ..."))
    store.save(writes(b"afterwards"))
    damaged = tmp_path / files(tmp_path)[-1]
    damaged.write_bytes(damage(damaged.read_bytes()))
    assert newest(tmp_path) == b"before ..."
    assert why in caplog.text


def test_what_the_reader_finds_unfit_is_passed_over_too(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for content in (b"good", b"bad"):
        store.save(writes(content))

    def picky(content: bytes) -> bytes:
        if content == b"bad":
            raise UnusableCheckpoint("it is bad")
        return content

    assert store.load_newest(picky) == b"good"


def test_broken_ones_do_not_push_whole_ones_out(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(writes(b"whole"))
    for number in (2, 3, 999_999_999_999):
        (tmp_path / f"checkpoint-{number:012}.pt").write_bytes(b"torn")
    store = CheckpointStore(tmp_path, keep=2)
    assert store.load_newest(lambda content: content) == b"whole"
    store.save(writes(b"next"))
    assert files(tmp_path) == ["checkpoint-000000000001.pt", "checkpoint-000000000004.pt"]
    assert newest(tmp_path) == b"next"


def test_a_save_that_fails_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(writes(b"whole"))

    def full_disk(place: ContentWriter) -> None:
        place.write(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        store.save(full_disk)
    assert files(tmp_path) == ["checkpoint-000000000001.pt"]
    assert newest(tmp_path) == b"whole"


def test_what_a_killed_save_left_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".saving-0123").write_bytes(b"half")
    assert newest(tmp_path) is None
    CheckpointStore(tmp_path).save(writes(b"whole"))
    assert files(tmp_path) == ["checkpoint-000000000001.pt"]


def test_the_name_comes_after_the_content_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)

        def noted(*args: object, name: str = name, real: Callable[..., None] = real, **more: object) -> None:
            what = "directory" if name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else "file"  # type: ignore[call-overload]
            done.append(f"{name} {what}")
            real(*args, **more)

        monkeypatch.setattr(os, name, noted)
    CheckpointStore(tmp_path).save(writes(b"whole"))
    assert done == ["fsync file", "rename file", "fsync directory"]


# ---- what a directory may hold


def plant_link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def plant_fifo(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def plant_directory(place: Path, outside: Path) -> None:
    place.mkdir()


def plant_giant(place: Path, outside: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 43)  # a hole: it takes no room on the disk


def plant_giant_with_seal(place: Path, outside: Path) -> None:
    with place.open("wb") as file:
        file.write(outside.read_bytes()[:16] + ((1 << 43) - 56).to_bytes(8, "little"))
        file.truncate(1 << 43)


@pytest.mark.parametrize(
    "plant", [plant_link, plant_fifo, plant_directory, plant_giant, plant_giant_with_seal]
)
def test_only_regular_files_of_a_sane_size_are_read(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    CheckpointStore(elsewhere).save(writes(b"a whole checkpoint, but of somebody else"))
    outside = elsewhere / files(elsewhere)[0]
    before = outside.read_bytes()
    CheckpointStore(here).save(writes(b"ours"))
    plant(here / "checkpoint-000000000002.pt", outside)
    plant(here / ".saving-0123", outside)

    store = CheckpointStore(here)
    assert store.load_newest(lambda content: content) == b"ours"
    store.save(writes(b"ours again"))
    assert newest(here) == b"ours again"
    assert outside.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["checkpoint-..%2f.pt", "..pt", "checkpoint-1.pt", "checkpoint-٠٠٠٠٠٠٠٠٠٠٠٢.pt", "model.pt"]
)
def test_other_names_are_not_ours(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(writes(b"ours"))
    (tmp_path / name).write_bytes((tmp_path / files(tmp_path)[-1]).read_bytes()[:-4] + b"them")
    assert newest(tmp_path) == b"ours"
    store.save(writes(b"again"))
    assert (tmp_path / name).exists()


def test_a_journal_that_is_no_file_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
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

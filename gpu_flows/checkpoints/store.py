"""Checkpoint files: written completely or not at all, and read only if they are complete.

A checkpoint is written to a temporary file in the same directory, flushed to the disk, and only then renamed,
so a job that is killed at any moment keeps the checkpoints it had. Each file starts with a header: a magic
string, the length of the content, and a checksum of it. A file that does not match its header is skipped in
favour of the next older one.

This module does not use `common.files.write_atomically`, for two reasons. The job can write to the directory,
which may contain anything by the time it is read again. So all files are opened relative to the directory's
descriptor, under names made of digits, without following links, and only regular files of a plausible size
are read. And a checkpoint is streamed into its file while the checksum is computed, instead of being built in
memory first.

It uses only the standard library; the caller knows what the content means.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

KEEP = 2

_NAME = re.compile(r"checkpoint-([0-9]{12})\.pt")
_PARTIAL = ".saving-"
_MAGIC = b"gpu-flows ckpt 1"
_HEADER = struct.Struct("<16sQ32s")  # magic, length, checksum


class UnusableCheckpoint(Exception):
    """A file is not a complete checkpoint; the message states why."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is on the disk."""

    number: int
    bytes: int


class CheckpointStore:
    """The checkpoints in one directory, numbered in the order of saving. The last few are kept."""

    def __init__(self, directory: Path, keep: int = KEEP) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = directory
        self.keep = keep
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._unusable: set[int] = set()

    def close(self) -> None:
        os.close(self._root)

    # -- write ------------------------------------------------------------------------------------

    def save(self, write: Callable[[ContentWriter], None]) -> SavedCheckpoint:
        """Save what `write` writes. When this returns, the checkpoint survives a crash of the machine."""
        partial = _PARTIAL + secrets.token_hex(8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(partial, flags, 0o600, dir_fd=self._root)
        try:
            with open(file, "wb") as opened:
                opened.write(bytes(_HEADER.size))
                content = ContentWriter(opened)
                try:
                    write(content)
                finally:
                    if content.failure:  # torch replaces it with an error of its own
                        raise content.failure
                opened.seek(0)
                opened.write(_HEADER.pack(_MAGIC, content.length, content.checksum.digest()))
                opened.flush()
                os.fsync(opened.fileno())
            number = self._next_number()
            os.rename(partial, _file_name(number), src_dir_fd=self._root, dst_dir_fd=self._root)
            os.fsync(self._root)
        except BaseException:
            self._remove(partial)
            raise
        self._delete_old()
        return SavedCheckpoint(number, _HEADER.size + content.length)

    def _next_number(self) -> int:
        number = max(self._numbers() - self._unusable, default=0) + 1
        while number in self._unusable:  # it may be a directory, which a file cannot replace
            number += 1
        return number

    def _delete_old(self) -> None:
        """Delete old and unusable checkpoints and partial files. Call it only after a successful save."""
        usable = sorted(self._numbers() - self._unusable)
        for number in {*usable[: -self.keep], *self._unusable}:
            self._remove(_file_name(number))
        for name in os.listdir(self._root):
            if name.startswith(_PARTIAL):
                self._remove(name)

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._root)

    # -- read -------------------------------------------------------------------------------------

    def load_newest(self, load: Callable[[bytes], T]) -> T | None:
        """Return what `load` makes of the newest complete checkpoint. One for which `load` raises
        UnusableCheckpoint is skipped."""
        for number in sorted(self._numbers(), reverse=True):
            try:
                return load(self.read(number))
            except UnusableCheckpoint as error:
                self._unusable.add(number)
                log.warning("%s/%s is skipped: %s", self.directory, _file_name(number), error)
        return None

    def read(self, number: int) -> bytes:
        """Return the content of a checkpoint. It is verified in memory, so a later change of the file does
        not matter."""
        try:
            # O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(_file_name(number), flags, dir_fd=self._root)
            with open(file, "rb") as opened:
                return _read_verified(opened)
        except (OSError, MemoryError) as error:
            raise UnusableCheckpoint(str(error)) from error

    def _numbers(self) -> set[int]:
        return {int(match[1]) for name in os.listdir(self._root) if (match := _NAME.fullmatch(name))}


class ContentWriter:
    """A file-like object for the content of a checkpoint. It tracks its length and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.length = 0
        self.checksum = hashlib.blake2b(digest_size=32)
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.failure = error
            raise
        self.checksum.update(data)
        self.length += written
        return written

    def flush(self) -> None:
        pass  # the store flushes at the end


def _read_verified(file: BinaryIO) -> bytes:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise UnusableCheckpoint("it is not a regular file")
    if status.st_size > _memory_bytes():
        raise UnusableCheckpoint(f"its {status.st_size:,} bytes exceed this machine's memory")
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise UnusableCheckpoint("it is too short to be a checkpoint")
    magic, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise UnusableCheckpoint("it was not written by this library")
    if length != status.st_size - _HEADER.size:
        raise UnusableCheckpoint(
            f"it should have {length:,} bytes of content and has {status.st_size - _HEADER.size:,}"
        )
    content = file.read(length)
    if hashlib.blake2b(content, digest_size=32).digest() != checksum:
        raise UnusableCheckpoint("its checksum is wrong")
    return content


def _file_name(number: int) -> str:
    return f"checkpoint-{number:012}.pt"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

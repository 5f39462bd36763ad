"""Checkpoint files: written whole or not at all, and read only when they are whole.

A checkpoint is written to a temporary file beside its place, forced to the disk, and only then given its
name, so a job that is killed at any moment leaves the checkpoints it had. Each file begins with a seal:
what it is, how long its content is, and a checksum of it. One that is torn, truncated or not ours breaks
its seal and is passed over for the next older one.

The directory may hold anything by the time it is read again. Files are reached through the directory's
descriptor and by names that are only digits, links are not followed, and nothing but a regular file of a
sane size is read. Standard library only: what the content means is the caller's business.
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
_SEAL = struct.Struct("<16sQ32s")  # what it is, length, checksum


class Unfit(Exception):
    """A file that is not a whole checkpoint of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is on the disk."""

    number: int
    bytes: int


class Store:
    """The checkpoints in one directory, numbered as they come. The last few are kept."""

    def __init__(self, directory: Path, keep: int = KEEP) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = directory
        self.keep = keep
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._unfit: set[int] = set()

    def close(self) -> None:
        os.close(self._root)

    # -- write ------------------------------------------------------------------------------------

    def save(self, write: Callable[[Content], None]) -> Saved:
        """Keep what `write` writes. When this returns, it survives a crash of the machine too."""
        partial = _PARTIAL + secrets.token_hex(8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(partial, flags, 0o600, dir_fd=self._root)
        try:
            with open(file, "wb") as opened:
                opened.write(bytes(_SEAL.size))
                content = Content(opened)
                try:
                    write(content)
                finally:
                    if content.failure:  # torch hides it behind an error of its own
                        raise content.failure
                opened.seek(0)
                opened.write(_SEAL.pack(_MAGIC, content.length, content.checksum.digest()))
                opened.flush()
                os.fsync(opened.fileno())
            number = self._next_number()
            os.rename(partial, _name(number), src_dir_fd=self._root, dst_dir_fd=self._root)
            os.fsync(self._root)
        except BaseException:
            self._remove(partial)
            raise
        self._tidy()
        return Saved(number, _SEAL.size + content.length)

    def _next_number(self) -> int:
        number = max(self._numbers() - self._unfit, default=0) + 1
        while number in self._unfit:  # it may be a directory, which nothing can be renamed to
            number += 1
        return number

    def _tidy(self) -> None:
        """Only now that a newer one is safe: old ones, broken ones, and what killed saves left."""
        whole = sorted(self._numbers() - self._unfit)
        for number in {*whole[: -self.keep], *self._unfit}:
            self._remove(_name(number))
        for name in os.listdir(self._root):
            if name.startswith(_PARTIAL):
                self._remove(name)

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._root)

    # -- read -------------------------------------------------------------------------------------

    def newest(self, load: Callable[[bytes], T]) -> T | None:
        """What `load` makes of the newest whole checkpoint. One that it answers with Unfit is passed over."""
        for number in sorted(self._numbers(), reverse=True):
            try:
                return load(self.read(number))
            except Unfit as why:
                self._unfit.add(number)
                log.warning("%s/%s is passed over: %s", self.directory, _name(number), why)
        return None

    def read(self, number: int) -> bytes:
        """The content of a checkpoint. It was checked as it is returned: nobody can change it in between."""
        try:
            # Without O_NONBLOCK, opening a FIFO would wait for somebody to write to it.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(_name(number), flags, dir_fd=self._root)
            with open(file, "rb") as opened:
                return _content(opened)
        except (OSError, MemoryError) as error:
            raise Unfit(str(error)) from error

    def _numbers(self) -> set[int]:
        return {int(ours[1]) for name in os.listdir(self._root) if (ours := _NAME.fullmatch(name))}


class Content:
    """Where the content of a checkpoint is written to: it is counted and summed up on its way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.length = 0
        self.checksum = hashlib.blake2b(digest_size=32)
        self.failure: OSError | None = None

    def write(self, some: bytes) -> int:
        try:
            written = self._file.write(some)
        except OSError as error:
            self.failure = error
            raise
        self.checksum.update(some)
        self.length += written
        return written

    def flush(self) -> None:
        pass  # the store does, at the end


def _content(file: BinaryIO) -> bytes:
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        raise Unfit("it is not a regular file")
    if about.st_size > _memory():
        raise Unfit(f"its {about.st_size:,} bytes are more than this machine's memory")
    seal = file.read(_SEAL.size)
    if len(seal) < _SEAL.size:
        raise Unfit("it is too short to be a checkpoint")
    magic, length, checksum = _SEAL.unpack(seal)
    if magic != _MAGIC:
        raise Unfit("it was not written by this library")
    if length != about.st_size - _SEAL.size:
        raise Unfit(f"it should have {length:,} bytes of content and has {about.st_size - _SEAL.size:,}")
    content = file.read(length)
    if hashlib.blake2b(content, digest_size=32).digest() != checksum:
        raise Unfit("its checksum is wrong")
    return content


def _name(number: int) -> str:
    return f"checkpoint-{number:012}.pt"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""Tar archives that Docker imports as an image: entries owned by root, each name once."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import IO


class Archive:
    """Writes a tar. Of two entries with the same name only the first is written: Docker refuses both."""

    def __init__(self, target: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=target, mode="w")  # noqa: SIM115
        self._names: set[str] = set()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def file(self, file: Path, name: str = "") -> None:
        """Add a file, under its own path or under this name. Links are followed. The file keeps its time:
        otherwise Python would compile it again."""
        found = file.stat()
        entry = tarfile.TarInfo(name or str(file))
        entry.mode, entry.mtime, entry.size = found.st_mode & 0o777, int(found.st_mtime), found.st_size
        with file.open("rb") as content:
            self._add(entry, content)

    def folder(self, name: str, mode: int, owner: int = 0) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
        self._add(entry)

    def link(self, name: str, target: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._add(entry)

    def text(self, name: str, text: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(text.encode())
        self._add(entry, io.BytesIO(text.encode()))

    def _add(self, entry: tarfile.TarInfo, content: IO[bytes] | None = None) -> None:
        entry.name = entry.name.lstrip("/")
        if entry.name not in self._names:
            self._names.add(entry.name)
            self._tar.addfile(entry, content)

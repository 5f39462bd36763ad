"""Tar archives in memory: the only form in which Docker copies files into and out of a container."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def make_tar(
    files: Mapping[str, bytes],
    folders: Mapping[str, int] | None = None,
    private: Mapping[str, tuple[int, int]] | None = None,
) -> bytes:
    """Return a tar of these files, under paths without a leading slash.

    `folders` are created with the given modes. `private` gives the user and group id of the files that
    only their owner may read.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path, mode in (folders or {}).items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o444
            if private and path in private:
                entry.mode, (entry.uid, entry.gid) = 0o400, private[path]
            tar.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def read_single_file(tar: bytes) -> bytes:
    """Return the content of the only file in a tar; nothing if its entry is not a plain file."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        entry = archive.next()
        file = archive.extractfile(entry) if entry and entry.isfile() else None
        return file.read() if file else b""

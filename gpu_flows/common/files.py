"""Writes a file so that a reader sees either the old content or the new content, never a part of it."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o644) -> None:
    """Replace the file's content in one step. `durable` also forces it to disk before returning.

    The content is written to a temporary file next to the target. An existing file or symbolic link under the
    temporary name is removed first and never followed.
    """
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(scratch, flags, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(scratch, path)

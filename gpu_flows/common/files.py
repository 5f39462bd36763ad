"""Writes a file so that a reader sees either the old content or the new content, never a part of it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o644) -> None:
    """Replace the file's content in one step. `durable` also forces it to disk before returning.

    The content is written to a temporary file next to the target, under a name that no other writer uses.
    """
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(scratch, flags, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise

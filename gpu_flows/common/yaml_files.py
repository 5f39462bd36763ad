"""Reads YAML files that people write, with errors that name the file."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 1_000_000


def read_yaml(path: Path, what: str, fix: str = "") -> Any:
    """Return the content of a file of at most 1 MB, of which errors speak as `what`. Raises ValueError, with
    what to do about a file that is not YAML."""
    import yaml  # not needed by those who only import a reader

    try:
        return yaml.safe_load(_read_text(path))
    except OSError as error:
        raise ValueError(
            f"{what} {path} cannot be read: {error.strerror or error}. Check the path."
        ) from None
    except Exception as error:  # besides its own errors, yaml raises those of int(), date() and recursion
        problem = " ".join(str(error).split())
        raise ValueError(f"{what} {path} is not YAML: {problem}. {fix}".rstrip()) from None


def _read_text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a named pipe would wait for a writer
        raise OSError("it is not a file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(f"it has more than {MOST_BYTES:,} bytes")
    return content.decode("utf-8")

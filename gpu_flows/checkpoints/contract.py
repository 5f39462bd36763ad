"""What a worker and a job that can be stopped agree on, in any language and with any framework.

- The job keeps what it needs to go on in the directory that GPU_FLOWS_CHECKPOINT_DIR names. It is
  the job's own and the same for every attempt, wherever it runs.
- SIGTERM asks it to save and to leave within GPU_FLOWS_GRACE_SECONDS; after that it is killed.
- Exit code 85 says: asked to leave, saved, and left. Any other means what it always means.
- A job may tell how it fares in `journal.jsonl` there, a line of JSON each time it saved a
  checkpoint, went on from one, or left. From it come the facts about lost work and what saving costs.

Standard library only: the worker reads this too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

DIRECTORY = "GPU_FLOWS_CHECKPOINT_DIR"
GRACE = "GPU_FLOWS_GRACE_SECONDS"
ATTEMPT = "GPU_FLOWS_ATTEMPT"  # `<job id>.<number>`
CHECKPOINTED = 85
JOURNAL = "journal.jsonl"
MOST, LATEST = 2**53, 1e11  # of any number, and of a time: what is beyond is no such thing
MOST_READ = 4 * 2**20  # of a journal: it is the job's to write, and may be anything


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal."""

    event: Literal["saved", "restored", "left"]
    attempt: int
    time: float  # when it was done
    step: int = 0  # how far the job had come, in its own counting
    seconds: float = 0.0  # how long it took
    bytes: int = 0


def note(directory: Path, entry: Entry) -> None:
    """Add a line. One write, so that two processes never mix theirs."""
    line = json.dumps(asdict(entry)) + "\n"
    # Without O_NONBLOCK, a FIFO in its place would hold the job up for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(directory / JOURNAL, flags, 0o644)  # the worker may be another user
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def journal(directory: Path) -> list[Entry]:
    """What the job told, oldest first; lines that make no sense are passed over."""
    try:
        file = os.open(directory / JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    with open(file, "rb") as opened:
        text = opened.read(MOST_READ).decode(errors="replace")
    return [entry for line in text.splitlines() if (entry := _entry(line))]


def _entry(line: str) -> Entry | None:
    try:
        told = json.loads(line)
        known = {each.name: told[each.name] for each in fields(Entry) if each.name in told}
        entry = Entry(**known)
        numbers = (entry.attempt, entry.time, entry.step, entry.seconds, entry.bytes)
        right = entry.event in ("saved", "restored", "left") and all(
            isinstance(number, int | float) and 0 <= number < MOST for number in numbers
        )
    except (ValueError, TypeError, KeyError):
        return None
    return entry if right and entry.time < LATEST else None


def attempt_number(environment: Mapping[str, str] = os.environ) -> int:
    """Which attempt this process belongs to; 1 for a job started by hand."""
    number = environment.get(ATTEMPT, "").rpartition(".")[2]
    return int(number) if number.isdigit() else 1

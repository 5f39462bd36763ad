"""The contract between a worker and a job that can be stopped, for any language and framework.

- The job keeps its checkpoints in the directory that GPU_FLOWS_CHECKPOINT_DIR names. The directory belongs to
  the job and is the same for every attempt, on every node.
- SIGTERM asks the job to save and exit within GPU_FLOWS_GRACE_SECONDS; after that it is killed.
- Exit code 85 means: the job was asked to stop and has saved. Exit code 86 means: the job ran out of GPU
  memory. All other exit codes keep their usual meaning.
- The job may append one line of JSON to `journal.jsonl` in that directory each time it saves a checkpoint,
  restores one, or stops. The facts about lost work and the cost of saving come from these lines. A line with
  the event `memory` states in `bytes` the most GPU memory that the job has used on a device.

This module uses only the standard library, because the worker imports it too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

DIRECTORY = "GPU_FLOWS_CHECKPOINT_DIR"
GRACE = "GPU_FLOWS_GRACE_SECONDS"
ATTEMPT = "GPU_FLOWS_ATTEMPT"  # `<job id>.<number>`
EXIT_CODE = (
    "GPU_FLOWS_EXIT_CODE"  # set by a flow for its own process: the exit code of the command that it ran
)
CHECKPOINTED = 85
OUT_OF_MEMORY = 86
JOURNAL = "journal.jsonl"

# The job writes the journal, so it may contain anything. Entries beyond these limits are ignored.
MAX_JOURNAL_BYTES = 4 * 2**20
MAX_NUMBER, MAX_TIME = 2**53, 1e11

EventKind = Literal["saved", "restored", "left", "memory"]
EVENTS = frozenset(get_args(EventKind))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal."""

    event: EventKind
    attempt: int
    time: float  # when the event was complete
    step: int = 0  # steps done so far, as the job counts them
    seconds: float = 0.0  # how long it took
    bytes: int = 0


def write_entry(directory: Path, entry: Entry) -> None:
    """Append one line to the journal. It is a single write, so lines of two processes never mix."""
    line = json.dumps(asdict(entry)) + "\n"
    # O_NONBLOCK: opening a FIFO of this name would otherwise block the job.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(directory / JOURNAL, flags, 0o644)  # readable for a worker that is another user
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read_journal(directory: Path) -> list[Entry]:
    """Return the entries of the journal, oldest first. Invalid lines are skipped."""
    try:
        file = os.open(directory / JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    with open(file, "rb") as opened:
        text = opened.read(MAX_JOURNAL_BYTES).decode(errors="replace")
    return [entry for line in text.splitlines() if (entry := _parse_entry(line))]


def attempt_number(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of the attempt this process belongs to; 1 for a job started by hand."""
    number = environment.get(ATTEMPT, "").rpartition(".")[2]
    return int(number) if number.isdigit() else 1


def _parse_entry(line: str) -> Entry | None:
    try:
        values = json.loads(line)
        entry = Entry(**{field.name: values[field.name] for field in fields(Entry) if field.name in values})
        numbers = (entry.attempt, entry.time, entry.step, entry.seconds, entry.bytes)
        valid = entry.event in EVENTS and all(
            isinstance(number, int | float) and 0 <= number < MAX_NUMBER for number in numbers
        )
    except (ValueError, TypeError, KeyError):
        return None
    return entry if valid and entry.time < MAX_TIME else None

"""What a worker writes on a run when it claims it: under which lease, where the run will run, and on what.

The text ends the message of the claiming state. It stays in the run's history, so that a worker that takes
over knows whose the run is.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State, StateType

_FORM = re.compile(
    r"Claimed under lease (\S+) by worker (.*) at (.*?); devices: (\[.*\])(?:; claim (\w+))?\.$", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Claim:
    lease: str
    worker: str
    place: str  # see `place_of`
    devices: tuple[str, ...] = ()  # ids
    id: str = ""  # tells two claims of a run under the same lease apart; early claims have none

    def __str__(self) -> str:
        devices, claim = json.dumps(list(self.devices)), f"; claim {self.id}" if self.id else ""
        who = f"lease {self.lease} by worker {self.worker} at {self.place}"
        return f"Claimed under {who}; devices: {devices}{claim}."

    @property
    def host(self) -> str:
        return self.place.partition(":")[0]


def place_of(folder: Path) -> str:
    """Return the name of a pool's folder on this machine. Workers of one machine may use several folders."""
    return f"{socket.gethostname()}:{folder.resolve()}"


def parse_claim(message: str | None) -> Claim | None:
    found = _FORM.search(message or "")
    if found is None:
        return None
    lease, worker, place, devices, claim_id = found.groups(default="")
    return Claim(lease, worker, place, tuple(json.loads(devices)), claim_id)


def find_claim(history: Iterable[State[Any]]) -> Claim | None:
    """Return the claim that holds in this history of a run; None if the run waits again since."""
    claim = None
    for state in sorted(history, key=lambda state: state.timestamp):
        if state.type == StateType.SCHEDULED:
            claim = None
        elif state.type == StateType.PENDING:
            claim = parse_claim(state.message) or claim
    return claim

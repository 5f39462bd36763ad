"""What the doctor's checks look at, and what they find."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gpu_flows.cli.problem import Problem
from gpu_flows.cli.server import Server

OK, INFO, WARN, ERROR = "ok", "info", "warn", "error"


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    what: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


_PROBE = """
import json
from gpu_flows.prefect_api.job_variables import GpuJobVariables
from gpu_flows.prefect_private import find_missing_names
print(json.dumps({"missing": find_missing_names(), "fields": list(GpuJobVariables.model_fields)}))
"""


class Surroundings:
    """Everything around a pool, each thing looked up once."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._probe: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Importing Prefect takes seconds: another process does it while the first checks run."""
        program = [sys.executable, "-c", _PROBE]
        self._probe = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def close(self) -> None:
        if self._probe:
            self._probe.kill()
            self._probe.communicate()

    @cached_property
    def server(self) -> Server:
        """Raises Problem if none answers, or if it does not let us in."""
        server = Server(timeout_s=5)
        server.get("/admin/version")
        return server

    @property
    def server_if_any(self) -> Server | None:
        """None if it does not answer, which the check of the server tells."""
        try:
            return self.server
        except Problem:
            return None

    @cached_property
    def prefect(self) -> dict[str, Any]:
        """What our own code finds in the installed Prefect. Raises Problem if it cannot be loaded."""
        if self._probe is None:
            self.begin()
        assert self._probe is not None
        said, complaint = self._probe.communicate(timeout=120)
        if self._probe.returncode:
            raise Problem(complaint.strip().splitlines()[-1] if complaint.strip() else "it died")
        return dict(json.loads(said.strip().splitlines()[-1]))


Check = Callable[[Surroundings], Iterator[Finding]]

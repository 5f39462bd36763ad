"""What a check receives and returns: its context and its findings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.prefect_client import PrefectClient

OK, INFO, WARN, ERROR = "ok", "info", "warn", "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check: what was found and, if something is wrong, how to fix it."""

    level: str
    what: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


_PREFECT_PROBE = """
import json
from gpu_flows.prefect_api.job_variables import GpuJobVariables
from gpu_flows.prefect_private import find_missing_names
print(json.dumps({"missing": find_missing_names(), "fields": list(GpuJobVariables.model_fields)}))
"""


class CheckContext:
    """The pool to check, and what several checks look up. Each lookup is made once."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._probe: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start to import Prefect, which takes seconds, in another process while the first checks run."""
        program = [sys.executable, "-c", _PREFECT_PROBE]
        self._probe = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def close(self) -> None:
        if self._probe:
            self._probe.kill()
            self._probe.communicate()

    @cached_property
    def client(self) -> PrefectClient:
        """Raises CommandError if no server answers, or if it refuses the credentials."""
        client = PrefectClient(timeout_s=5)
        client.get("/admin/version")
        return client

    @property
    def client_or_none(self) -> PrefectClient | None:
        """None if the server does not answer, which the check of the server reports."""
        try:
            return self.client
        except CommandError:
            return None

    @cached_property
    def prefect(self) -> dict[str, Any]:
        """What the probe finds in the installed Prefect. Raises CommandError if it cannot be imported."""
        if self._probe is None:
            self.start()
        assert self._probe is not None
        printed, errors = self._probe.communicate(timeout=120)
        if self._probe.returncode:
            raise CommandError(errors.strip().splitlines()[-1] if errors.strip() else "the probe died")
        return dict(json.loads(printed.strip().splitlines()[-1]))


Check = Callable[[CheckContext], Iterator[Finding]]

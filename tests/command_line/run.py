"""The command line as a person uses it: words in, exit code and two streams out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_flows.cli import main

NOBODY = "http://127.0.0.1:9/api"  # the discard port: nothing answers there
EVIL = "x\x1b[2J[red]\u202eevil\n=1"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gpu_flows(*words: str) -> Said:
    """Run a command line in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def gpu_flows_process(
    *words: str, env: dict[str, str], cwd: Path | None = None, stdin: str | None = None
) -> Said:
    """Run a command line as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_flows.cli", *words],
        env=env,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def refused(said: Said, code: int = 2) -> str:
    """What a command said that it did not do: on stderr, in a few lines, with no traceback."""
    assert said.code == code, said
    assert said.out == ""
    assert said.err.startswith("Error: ")
    assert "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) <= 2, said.err
    return said.err

"""Running a command line: arguments in, exit code and two streams out."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_flows.cli import main

NO_SERVER_URL = "http://127.0.0.1:9/api"  # the discard port: no server answers there
HOSTILE_TEXT = "x\x1b[2J[red]\u202eevil\n=1"


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gpu_flows(*words: str) -> CommandResult:
    """Run a command line in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue())


def gpu_flows_process(
    *words: str, env: dict[str, str], cwd: Path | None = None, stdin: str | None = None
) -> CommandResult:
    """Run a command line as a process of its own."""
    command = [sys.executable, "-m", "gpu_flows.cli", *words]
    done = subprocess.run(command, env=env, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def gpu_flows_in_terminal(*words: str, columns: int = 80) -> list[str]:
    """Run a command line in a terminal of this width and return the lines that it prints there."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 200, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "dumb"}
    command = [sys.executable, "-m", "gpu_flows.cli", *words]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment):
        os.close(follower)
        printed = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while chunk := os.read(leader, 65_536):
                printed += chunk
    os.close(leader)
    return printed.decode().splitlines()


def expect_error(result: CommandResult, code: int = 2) -> str:
    """Check that the command printed only a short error, with no traceback. Returns the error."""
    assert result.code == code, result
    assert result.out == ""
    assert result.err.startswith("Error: ")
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) <= 2, result.err
    return result.err

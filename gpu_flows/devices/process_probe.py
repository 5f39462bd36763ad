"""Runs the NVML script in a child process and replaces it if it is late or fails.

A caller never waits longer than the deadline. A process that is late or has failed is killed, and the next
one is started after a pause that doubles with each failure.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpu_flows.common.retry import Backoff
from gpu_flows.devices.probe import ProbeError

if TYPE_CHECKING:  # only the child process imports pynvml
    from gpu_flows.devices.nvml_probe import Answer, GpuSnapshot

SCRIPT = Path(__file__).with_name("nvml_probe.py")
LONGEST_PAUSE_S = 60.0


class ProcessProbe:
    """A Probe. It runs one process at a time, and only one thread at a time may call it.

    The first answer of a new process may take `start_s`, because a driver can be slow to start; all later
    ones must arrive within `deadline_s`. No call waits longer than `deadline_s`, except with
    `wait_for_start`.
    """

    def __init__(self, library: str | None, deadline_s: float, start_s: float, pause_s: float) -> None:
        # -P: do not import from the folder of the script.
        self._command = [sys.executable, "-P", str(SCRIPT), *([library] if library else [])]
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._backoff = Backoff(pause_s, factor=2, most_s=LONGEST_PAUSE_S)
        self._pauses = self._backoff.pauses()
        self._next_start = 0.0
        self._error = ProbeError("NVML has not been read yet")
        self._process: _Process | None = None
        self._killed: _Process | None = None

    def read(self, wait_for_start: bool = False) -> list[GpuSnapshot]:
        process = self._process or self._start()
        process.request(self._deadline_s if process.has_answered else self._start_s)
        until = process.due if wait_for_start else min(process.due, time.monotonic() + self._deadline_s)
        try:
            answer = process.receive(until)
        except EOFError:
            raise self._replace(ProbeError(process.describe_end())) from None
        except TimeoutError:
            waited_s = self._start_s if wait_for_start and not process.has_answered else self._deadline_s
            error = ProbeError(f"NVML has not answered for {waited_s:.1f} s")
            if until < process.due:  # a new process has more time than this caller
                raise error from None
            raise self._replace(error) from None
        if "error" in answer:
            raise self._replace(ProbeError(f"NVML failed: {answer['error']}", answer["fix"]))
        self._pauses = self._backoff.pauses()
        return answer["gpus"]

    def close(self) -> None:
        for process in (self._process, self._killed):
            if process is not None:
                process.kill()
                process.is_alive(within_s=1.0)
        self._process = None
        self._next_start = float("inf")
        self._error = ProbeError("the source of devices is closed", "Open the devices again.")

    def _start(self) -> _Process:
        # A process that is stuck inside the driver survives SIGKILL. Do not start more of them.
        stuck = self._killed is not None and self._killed.is_alive()
        if stuck or time.monotonic() < self._next_start:
            raise self._error.with_traceback(None)
        try:
            self._process = _Process(self._command)
        except OSError as error:
            raise self._replace(ProbeError(f"NVML's probe cannot be started ({error})")) from None
        return self._process

    def _replace(self, error: ProbeError) -> ProbeError:
        """Kill the process, let a later call start another one, and return the error."""
        if self._process is not None:
            self._process.kill()
        self._killed, self._process = self._process, None
        self._error = error
        self._next_start = time.monotonic() + next(self._pauses)
        return error


class _Process:
    """One child process. A byte on its stdin requests a snapshot, and a line on its stdout answers."""

    def __init__(self, command: list[str]) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C goes only to the parent, which closes this process
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self._readable = select.poll()  # select() fails for file descriptors above 1023
        self._readable.register(self._stdout, select.POLLIN)
        self._received = b""
        self._requested = False
        self.has_answered = False
        self.due = 0.0

    def request(self, within_s: float) -> None:
        """Request a snapshot. An earlier request that is still open keeps its deadline."""
        if self._requested:
            return
        try:
            self._stdin.write(b"?")
        except BrokenPipeError:
            pass  # the process has ended; `receive` finds out how
        self._requested = True
        self.due = time.monotonic() + within_s

    def receive(self, until: float) -> Answer:
        """Return the answer. Raises TimeoutError after `until`, EOFError if the process has ended."""
        while b"\n" not in self._received:
            remaining_s = max(0.0, until - time.monotonic())
            if not self._readable.poll(remaining_s * 1000):
                raise TimeoutError
            chunk = os.read(self._stdout.fileno(), 65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        self._requested, self.has_answered = False, True
        return cast("Answer", json.loads(line))

    def describe_end(self) -> str:
        if self.is_alive(within_s=1.0):
            return "NVML's probe closed its pipe"
        code = self._popen.returncode
        return f"NVML crashed its probe (signal {-code})" if code < 0 else f"NVML's probe ended (code {code})"

    def is_alive(self, within_s: float = 0.0) -> bool:
        """Return whether the process still runs after this time. One that has ended is reaped."""
        try:
            self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        self._popen.kill()
        self._stdin.close()
        self._stdout.close()

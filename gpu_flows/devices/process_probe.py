"""The probe as its owner sees it: it answers within a deadline, or it is replaced.

The owner waits for an answer only so long, then goes on with a reason in hand. A probe that is
late or has failed is killed, and the next one starts after a pause that doubles with each failure.
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

if TYPE_CHECKING:  # at run time only the child imports pynvml
    from gpu_flows.devices.nvml_probe import Answer, GpuSnapshot

SCRIPT = Path(__file__).with_name("nvml_probe.py")
LONGEST_PAUSE_S = 60.0
STUCK_FIX = "Check `nvidia-smi` and `dmesg`; a stuck driver needs a GPU reset or a reboot."


class ProbeError(Exception):
    """There is no answer now; `reason` stays the same for as long as the trouble does."""

    def __init__(self, reason: str, fix: str = STUCK_FIX) -> None:
        super().__init__(f"{reason}. {fix}")
        self.reason = reason


class ProcessProbe:
    """One probe at a time. The owner sees to it that one thread at a time asks.

    A new probe's first answer may take `start_s`, for a sleeping driver can take long to wake;
    every later one `deadline_s`. No call waits longer than `deadline_s`, unless it is `patient`.
    """

    def __init__(self, library: str | None, deadline_s: float, start_s: float, pause_s: float) -> None:
        # -P: the folder of the script is not a place to import from.
        self._command = [sys.executable, "-P", str(SCRIPT), *([library] if library else [])]
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._first_pause_s = self._pause_s = pause_s
        self._next_start = 0.0
        self._trouble = ProbeError("NVML has not been asked yet")
        self._process: _Process | None = None
        self._dying: _Process | None = None

    def look(self, patient: bool = False) -> list[GpuSnapshot]:
        """All GPUs as the probe sees them now; raises ProbeError when it does not say."""
        process = self._process or self._start()
        process.ask(self._deadline_s if process.has_answered else self._start_s)
        until = process.due if patient else min(process.due, time.monotonic() + self._deadline_s)
        try:
            answer = process.answer(until)
        except EOFError:
            raise self._give_up(ProbeError(process.obituary())) from None
        except TimeoutError:
            waited_s = self._start_s if patient and not process.has_answered else self._deadline_s
            trouble = ProbeError(f"NVML has not answered for {waited_s:.1f} s")
            if until < process.due:  # a new probe has more time than this caller
                raise trouble from None
            raise self._give_up(trouble) from None
        if "error" in answer:
            raise self._give_up(ProbeError(f"NVML failed: {answer['error']}", answer["fix"]))
        self._pause_s = self._first_pause_s
        return answer["gpus"]

    def close(self) -> None:
        for process in (self._process, self._dying):
            if process is not None:
                process.kill()
                process.is_alive(within_s=1.0)
        self._process = None
        self._next_start = float("inf")
        self._trouble = ProbeError("NVML is no longer watched", "Open the devices again.")

    def _start(self) -> _Process:
        # A process stuck inside the driver outlives its kill: none is started behind it.
        stuck = self._dying is not None and self._dying.is_alive()
        if stuck or time.monotonic() < self._next_start:
            raise self._trouble.with_traceback(None)
        try:
            self._process = _Process(self._command)
        except OSError as error:
            raise self._give_up(ProbeError(f"NVML's probe cannot be started ({error})")) from None
        return self._process

    def _give_up(self, trouble: ProbeError) -> ProbeError:
        if self._process is not None:
            self._process.kill()
        self._dying, self._process = self._process, None
        self._trouble = trouble
        self._next_start = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return trouble


class _Process:
    """The pipes to one probe: a byte asks, a line answers."""

    def __init__(self, command: list[str]) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for its owner, who then closes it
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self._readable = select.poll()  # unlike select(), knows no highest file number
        self._readable.register(self._stdout, select.POLLIN)
        self._received = b""
        self._waiting = False
        self.has_answered = False
        self.due = 0.0

    def ask(self, within_s: float) -> None:
        """Ask, unless an earlier question is still open: then that one's time goes on."""
        if self._waiting:
            return
        try:
            self._stdin.write(b"?")
        except BrokenPipeError:
            pass  # it has ended; its last words, or the lack of them, tell why
        self._waiting = True
        self.due = time.monotonic() + within_s

    def answer(self, until: float) -> Answer:
        """Raises TimeoutError when time is up, EOFError when the probe has ended."""
        while b"\n" not in self._received:
            left_s = max(0.0, until - time.monotonic())
            if not self._readable.poll(left_s * 1000):
                raise TimeoutError
            chunk = os.read(self._stdout.fileno(), 65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        self._waiting, self.has_answered = False, True
        return cast("Answer", json.loads(line))

    def obituary(self) -> str:
        if self.is_alive(within_s=1.0):
            return "NVML's probe closed its pipe"
        code = self._popen.returncode
        return f"NVML crashed its probe (signal {-code})" if code < 0 else f"NVML's probe ended (code {code})"

    def is_alive(self, within_s: float = 0.0) -> bool:
        """Whether it is still there after so long; one that is not is reaped."""
        try:
            self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        self._popen.kill()
        self._stdin.close()
        self._stdout.close()

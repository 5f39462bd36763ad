"""Runs a command in its own process group, passes on its output, and stops everything that it started.

A thread starts and supervises the command. Python delivers signals to the main thread only, so no signal
can interrupt the supervision.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from gpu_flows.checkpoints import contract
from gpu_flows.flows.output import Emit, Output
from gpu_flows.flows.process_tree import MARK, ProcessTree
from gpu_flows.prefect_private import announced_intent

_POLL_S = 0.1
_KILL_TIMEOUT_S = 5.0
_SIGNAL_CHECK_S = 1.0


class CommandFailed(RuntimeError):
    """The command failed or could not be started; the message says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and for how long."""

    arguments: list[str]
    working_directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 0.0
    grace_seconds: float = 10.0


_LIKELY_CAUSE = {-signal.SIGKILL: "killed for lack of memory", 126: "not executable", 127: "not found"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    exit_code: int  # negative: the signal that killed it
    seconds: float
    lines: int
    last_lines: tuple[str, ...] = ()
    timed_out: bool = False

    @property
    def shell_exit_code(self) -> int:
        """The exit code as a shell reports it: 128 plus the signal that ended the command."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

    def explain(self) -> str:
        """Return the message of a failed run."""
        code = self.exit_code
        if self.timed_out:
            what = f"the command was stopped: its timeout was over after {self.seconds:.0f} s."
        elif code in _LIKELY_CAUSE:
            what = f"the command ended with exit code {code}, most likely: {_LIKELY_CAUSE[code]}."
        elif code < 0:
            what = f"the command was ended by signal {-code} ({signal.strsignal(-code)})."
        else:
            what = f"the command ended with exit code {code}."
        return "\n".join([what, "Its last lines:", *self.last_lines]) if self.last_lines else what


def split_command(line: str, *, shell: bool = False) -> list[str]:
    """Split a command line into arguments like a shell does."""
    if not line.strip():
        raise CommandFailed("the command is empty. Give a command line, such as: python train.py")
    if shell:
        return ["/bin/sh", "-c", line]
    try:
        return shlex.split(line)
    except ValueError as error:
        raise CommandFailed(f"the command line is not complete ({error}). Check its quotes: {line}") from None


def run_command(command: Command, emit: Emit) -> Outcome:
    """Run a command to its end. If a signal interrupts this call, stop the command and all its processes
    first, and then raise the interruption.

    `emit` gets the output line by line, at a rate that people can read; stdout gets all of it.
    """
    ended: Future[Outcome] = Future()
    may_start, must_stop = threading.Event(), threading.Event()

    def supervise() -> None:
        may_start.wait()
        try:
            ended.set_result(_supervise(command, Output(emit), must_stop))
        except BaseException as error:
            ended.set_exception(error)

    # The thread waits for `may_start`, so that nothing is launched yet if a signal interrupts its start.
    threading.Thread(target=copy_context().run, args=(supervise,), daemon=True).start()
    interruption: BaseException | None = None
    while not ended.done():
        try:
            may_start.set()
            # With a timeout, because a signal that arrives just before the thread blocks does not wake it.
            wait([ended], timeout=_SIGNAL_CHECK_S)
        except BaseException as signalled:  # TerminationSignal, KeyboardInterrupt
            # A second signal does not shorten the grace period of the command.
            interruption = interruption or signalled
            must_stop.set()
    if interruption is None:
        return ended.result()
    outcome = None if ended.exception() else ended.result()
    if announced_intent() == "reschedule" and outcome is not None:
        _record_checkpoint(outcome)
        if outcome.exit_code == 0 and not outcome.timed_out:
            return outcome  # the command finished instead of stopping early
    raise interruption


def _record_checkpoint(outcome: Outcome) -> None:
    """Record in the job's journal that a preempted command has saved a checkpoint, if its exit code states
    so and it has no entry of its own. The worker cannot see the exit code of the command."""
    directory, attempt = os.environ.get(contract.DIRECTORY, ""), contract.attempt_number()
    if outcome.exit_code != contract.CHECKPOINTED or not directory:
        return
    last = contract.read_journal(Path(directory))[-1:]
    if [(entry.event, entry.attempt) for entry in last] != [("left", attempt)]:
        with suppress(OSError):
            contract.write_entry(Path(directory), contract.Entry("left", attempt, time.time()))


def _supervise(command: Command, output: Output, must_stop: threading.Event) -> Outcome:
    """Start the command and follow it until all its processes have ended. Runs in its own thread."""
    mark = uuid4().hex
    started = time.monotonic()
    process = _start(command, mark)
    tree = ProcessTree(process.pid, mark)
    pipe = _OutputPipe(process, output)
    timed_out = False
    try:
        while not (tree.leader_ended or must_stop.is_set() or timed_out):
            pipe.pump(_POLL_S)
            timed_out = 0 < command.timeout_seconds <= time.monotonic() - started
        timed_out = timed_out and not tree.leader_ended
    finally:
        _stop(tree, pipe, command.grace_seconds)
        exit_code = process.wait()
        pipe.close()
    last_lines = tuple(output.last_lines)
    return Outcome(exit_code, time.monotonic() - started, output.lines, last_lines, timed_out)


def _start(command: Command, mark: str) -> subprocess.Popen[bytes]:
    name = command.arguments[0]
    directory = Path(command.working_directory).expanduser()
    if not directory.is_dir():
        raise CommandFailed(
            f"the working directory {directory} does not exist where this job runs. "
            "Create it there, or leave working_directory empty."
        )
    # Without PYTHONUNBUFFERED the lines of a Python command would arrive in blocks of 8 kB.
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **command.environment, MARK: mark}
    try:
        return subprocess.Popen(
            command.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # a single stream keeps the order of the lines
            cwd=directory,
            env=environment,
            process_group=0,
        )
    except (OSError, ValueError) as error:
        fixes: dict[type[Exception], str] = {
            FileNotFoundError: "Install it where this job runs, or give its full path.",
            PermissionError: f"Make it executable, or name its interpreter too, as in: python {name}",
        }
        fix = fixes.get(type(error), "Check the command line.")
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandFailed(f"{name!r} cannot be run here: {why}. {fix}") from None


def _stop(tree: ProcessTree, pipe: _OutputPipe, grace: float) -> None:
    """Stop all processes, so that none stays on the devices: SIGTERM, the grace period, then SIGKILL."""
    alive = tree.alive()
    if alive:
        pipe.pump(_POLL_S)  # show the output of the command before the remark
        whose = "that the command left behind" if tree.leader_ended else "of the command"
        pipe.output.remark(f"stopping {len(alive)} process(es) {whose}: SIGTERM, {grace:g} s, SIGKILL")
    deadline = time.monotonic() + grace
    terminated: set[psutil.Process] = set()
    while alive and time.monotonic() < deadline + _KILL_TIMEOUT_S:
        for process in alive:
            with suppress(psutil.Error):
                if time.monotonic() >= deadline:
                    process.kill()
                elif process not in terminated and (tree.in_group(process) or tree.leader_ended):
                    # A live leader stops processes that it has put into other groups itself, as torchrun
                    # does. A second SIGTERM could interrupt their last checkpoint.
                    terminated.add(process)
                    process.terminate()
        pipe.pump(_POLL_S)  # keep reading: a process that blocks on its output cannot end
        alive = tree.alive()
    if alive:
        pipe.output.remark(f"could not be killed: {[process.pid for process in alive]}")


class _OutputPipe:
    """The reading end of a command's output."""

    def __init__(self, process: subprocess.Popen[bytes], output: Output) -> None:
        assert process.stdout is not None
        self.stream = process.stdout
        self.output = output
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.stream, selectors.EVENT_READ)
        self.ended = False

    def pump(self, seconds: float) -> None:
        """Pass on output for this long, or until the output ends."""
        until = time.monotonic() + seconds
        if self.ended:
            time.sleep(min(seconds, 0.05))
        while not self.ended and (remaining := until - time.monotonic()) > 0:
            if not self.selector.select(remaining):
                return
            chunk = os.read(self.stream.fileno(), 65_536)
            self.ended = not chunk
            self.output.feed(chunk)

    def close(self) -> None:
        if not self.ended:
            self.pump(1.0)  # the rest; returns immediately if no process holds the writing end
        self.selector.close()
        self.stream.close()
        self.output.close()

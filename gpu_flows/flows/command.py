"""The `command` flow: any command line as a job.

The command runs in its own process group. A thread starts it, passes its output on and, however the
run ends, makes sure that nothing of it stays behind. Signals only ever reach the main thread, so
none can tear the thread out of that work.
"""

from __future__ import annotations

import logging
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
from typing import Annotated, Any
from uuid import uuid4

import psutil
from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from gpu_flows.checkpoints import contract
from gpu_flows.flows.output import Emit, Output
from gpu_flows.prefect_private import announced_intent


@flow(name="command")
def command(
    command: str,
    shell: bool = False,
    working_directory: str = "",
    environment: dict[str, str] = {},  # noqa: B006  only read, and Optional would draw tabs in the form
    timeout_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
) -> dict[str, Any]:
    """Run a command line on the devices this run was given.

    Its output shows in the run's logs. An exit code other than 0 fails the run. Asked to make room for
    others, it gets SIGTERM and may save what it needs in $GPU_FLOWS_CHECKPOINT_DIR; it is run again later.

    Args:
        command: The command line, for example: python train.py --epochs 3.
        shell: Hand the line to /bin/sh, for pipes, && and variables.
        working_directory: Where to run it; empty means the job's own directory.
        environment: Variables to set or replace, next to those the job already has.
        timeout_seconds: Stop it after this many seconds; 0 means never.
    """
    arguments = split_command(command, shell=shell)
    # Less than the worker allows this whole process, or its SIGKILL could come before ours.
    grace = 0.8 * float(os.environ.get(contract.GRACE, "10"))
    environment = {contract.GRACE: f"{grace:g}", **environment}
    wanted = Command(arguments, working_directory, environment, timeout_seconds, grace)
    outcome = run_command(wanted, _send_to_run_logs(str(flow_run.id)))
    if outcome.timed_out or outcome.exit_code != 0:
        raise CommandError(outcome.explain())
    return {"exit_code": 0, "seconds": outcome.seconds, "lines": outcome.lines}


class CommandError(RuntimeError):
    """The command ended badly, or could not even be started; the message says why."""


def split_command(line: str, *, shell: bool = False) -> list[str]:
    """The arguments of a command line, as a shell would see them."""
    if not line.strip():
        raise CommandError("the command is empty. Give a command line, such as: python train.py")
    if shell:
        return ["/bin/sh", "-c", line]
    try:
        return shlex.split(line)
    except ValueError as error:
        raise CommandError(f"the command line is not complete ({error}). Check its quotes: {line}") from None


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and for how long."""

    arguments: list[str]
    working_directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 0.0
    grace_seconds: float = 10.0


_MOSTLY = {-signal.SIGKILL: "killed for want of memory", 126: "not executable", 127: "not found"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    exit_code: int  # negative: the signal that killed it
    seconds: float
    lines: int
    last_lines: tuple[str, ...] = ()
    timed_out: bool = False

    def explain(self) -> str:
        """What happened, for the message of a failed run."""
        code = self.exit_code
        if self.timed_out:
            what = f"the command was stopped: its timeout was over after {self.seconds:.0f} s."
        elif code in _MOSTLY:
            what = f"the command ended with exit code {code}, mostly a sign of: {_MOSTLY[code]}."
        elif code < 0:
            what = f"the command was ended by signal {-code} ({signal.strsignal(-code)})."
        else:
            what = f"the command ended with exit code {code}."
        return "\n".join([what, "Its last lines:", *self.last_lines]) if self.last_lines else what


def run_command(command: Command, emit: Emit) -> Outcome:
    """Run a command to its end, or to ours: when this call is interrupted, all of it is gone first.

    `emit` gets its output line by line, as many as a reader can follow; stdout gets everything.
    """
    ended: Future[Outcome] = Future()
    may_start, must_stop = threading.Event(), threading.Event()

    def supervise() -> None:
        may_start.wait()
        try:
            ended.set_result(_supervise(command, Output(emit), must_stop))
        except BaseException as error:
            ended.set_exception(error)

    # The thread waits for a word, so that a signal which hits its start finds nothing launched yet.
    threading.Thread(target=copy_context().run, args=(supervise,), daemon=True).start()
    interruption: BaseException | None = None
    while not ended.done():
        try:
            may_start.set()
            wait([ended])
        except BaseException as signalled:  # TerminationSignal, KeyboardInterrupt
            # A second signal changes nothing: the command keeps its grace.
            interruption = interruption or signalled
            must_stop.set()
    if interruption is not None and not (announced_intent() == "reschedule" and _is_done(ended)):
        raise interruption
    return ended.result()


def _is_done(ended: Future[Outcome]) -> bool:
    """Whether a command that was asked to leave has finished instead. If it says that it saved and left,
    the worker, which sees only this process, is told in the job's journal."""
    outcome = None if ended.exception() else ended.result()
    directory, number = os.environ.get(contract.DIRECTORY, ""), contract.attempt_number()
    if outcome and outcome.exit_code == contract.CHECKPOINTED and directory:
        told = contract.read_journal(Path(directory))[-1:]
        if [(entry.event, entry.attempt) for entry in told] != [("left", number)]:  # it did not say so itself
            with suppress(OSError):
                contract.write_entry(Path(directory), contract.Entry("left", number, time.time()))
    return outcome is not None and outcome.exit_code == 0 and not outcome.timed_out


_MARK = "GPU_FLOWS_COMMAND"  # in the environment of everything that a command starts
_TICK = 0.1
_UNKILLABLE_AFTER = 5.0


def _supervise(command: Command, output: Output, must_stop: threading.Event) -> Outcome:
    """Runs in its own thread, from the start of a command until nothing of it is left."""
    mark = uuid4().hex
    started = time.monotonic()
    process = _start(command, mark)
    family = _Family(process.pid, mark)
    pipe = _Pipe(process, output)
    timed_out = False
    try:
        while not (family.leader_ended or must_stop.is_set() or timed_out):
            pipe.pump(_TICK)
            timed_out = 0 < command.timeout_seconds <= time.monotonic() - started
        timed_out = timed_out and not family.leader_ended
    finally:
        _end(family, pipe, command.grace_seconds)
        exit_code = process.wait()
        pipe.close()
    last_lines = tuple(output.last_lines)
    return Outcome(exit_code, time.monotonic() - started, output.lines, last_lines, timed_out)


def _start(command: Command, mark: str) -> subprocess.Popen[bytes]:
    name = command.arguments[0]
    directory = Path(command.working_directory).expanduser()
    if not directory.is_dir():
        raise CommandError(
            f"the working directory {directory} does not exist where this job runs. "
            "Create it there, or leave working_directory empty."
        )
    # Unbuffered, or the lines of a Python command would come in lumps of 8 kB.
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **command.environment, _MARK: mark}
    try:
        return subprocess.Popen(
            command.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one stream keeps the order in which lines were written
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
        raise CommandError(f"{name!r} cannot be run here: {why}. {fix}") from None


def _end(family: _Family, pipe: _Pipe, grace: float) -> None:
    """Nothing may stay behind on the devices: SIGTERM, the grace, then SIGKILL."""
    members = family.alive()
    if members:
        pipe.pump(_TICK)  # what the command itself has said comes first
        whose = "that the command left behind" if family.leader_ended else "of the command"
        pipe.output.remark(f"stopping {len(members)} process(es) {whose}: SIGTERM, {grace:g} s, SIGKILL")
    deadline = time.monotonic() + grace
    warned: set[psutil.Process] = set()
    while members and time.monotonic() < deadline + _UNKILLABLE_AFTER:
        for member in members:
            with suppress(psutil.Error):
                if time.monotonic() >= deadline:
                    member.kill()
                elif member not in warned and (family.in_group(member) or family.leader_ended):
                    # What the leader put into other groups it stops itself if it can, as torchrun
                    # does; a second SIGTERM could cut its last checkpoint short.
                    warned.add(member)
                    member.terminate()
        pipe.pump(_TICK)  # keep reading: one that cannot write its last words cannot end
        members = family.alive()
    if members:
        pipe.output.remark(f"could not be killed: {[member.pid for member in members]}")


class _Family:
    """Everything a command started, wherever it went.

    A process counts when it is in the command's group, when it descends from the command, or when it
    has the command's mark in its environment: daemons leave group and parents, but keep that.
    The leader is not reaped before the end, so its id, which is the group's, cannot pass to others.
    """

    def __init__(self, leader: int, mark: str) -> None:
        self.group = leader
        self.mark = mark
        self.leader = psutil.Process(leader)
        self.descendants: set[psutil.Process] = set()

    @property
    def leader_ended(self) -> bool:
        return not _runs(self.leader)

    def alive(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            self.descendants.update(self.leader.children(recursive=True))
        return [process for process in psutil.process_iter() if self._has(process) and _runs(process)]

    def in_group(self, process: psutil.Process) -> bool:
        with suppress(OSError):
            return os.getpgid(process.pid) == self.group
        return False

    def _has(self, process: psutil.Process) -> bool:
        if self.in_group(process) or process in self.descendants:
            return True
        with suppress(psutil.Error, OSError):
            return process.environ().get(_MARK) == self.mark
        return False


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class _Pipe:
    """The reading end of a command's output."""

    def __init__(self, process: subprocess.Popen[bytes], output: Output) -> None:
        assert process.stdout is not None
        self.stream = process.stdout
        self.output = output
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.stream, selectors.EVENT_READ)
        self.ended = False

    def pump(self, seconds: float) -> None:
        """Pass output on for this long, or until the moment it ends."""
        until = time.monotonic() + seconds
        if self.ended:
            time.sleep(min(seconds, 0.05))
        while not self.ended and (left := until - time.monotonic()) > 0:
            if not self.selector.select(left):
                return
            chunk = os.read(self.stream.fileno(), 65_536)
            self.ended = not chunk
            self.output.feed(chunk)

    def close(self) -> None:
        if not self.ended:
            self.pump(1.0)  # what is still in it; ends at once when nobody holds the other end
        self.selector.close()
        self.stream.close()
        self.output.close()


def _send_to_run_logs(run_id: str) -> Emit:
    """What a run logger does, but without the console: stdout has these lines already."""
    logger, run = logging.getLogger("prefect.flow_runs"), {"flow_run_id": run_id}

    def emit(line: str) -> None:
        record = logger.makeRecord("command", logging.INFO, __file__, 0, line, (), None, extra=run)
        if logger.isEnabledFor(record.levelno) and logger.filter(record):
            for handler in logger.handlers:
                handler.handle(record)

    return emit

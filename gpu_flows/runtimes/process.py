"""Jobs as processes of the worker's machine: the default.

Each attempt runs under a supervisor (`supervisor.py`), which the worker starts in a session of its own, with
its output in a file. So it outlives its worker. The folder of an attempt in the attempt store also holds

    output.log     everything the process prints
    work           the process's working directory, unless the job names one; removed after the attempt

and what the supervisor keeps there. Several machines may share the folder. A worker that finds an attempt of
another machine follows it through these files, and judges it as lost when its supervisor has not touched
`alive` for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from gpu_flows.common.files import write_atomically
from gpu_flows.runtimes import supervisor
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import (
    Attempt,
    End,
    Found,
    Intent,
    Launch,
    LaunchCancelled,
    LaunchError,
    device_environment,
)
from gpu_flows.runtimes.output_tail import OutputTail, read_end
from gpu_flows.runtimes.process_identity import ProcessIdentity, identity_of, kill_attempt, read_identity
from gpu_flows.schedulers.model import Device

WORK = "work"
SILENT_AFTER_S = 120.0  # without a sign of life for so long, an attempt of another machine counts as lost


class ProcessRuntime:
    """A `Runtime` whose attempts are processes of this machine."""

    def __init__(
        self,
        attempt_store: AttemptStore,
        claims_of: Callable[[Iterable[Device]], Sequence[int]] = lambda devices: (),
    ) -> None:
        """`claims_of` returns the file descriptors by which this process has claimed devices. An attempt gets
        those of its own devices, so that they stay claimed while it outlives its worker."""
        self._attempt_store, self._claims_of = attempt_store, claims_of
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._seen_alive: dict[str, ProcessIdentity] = {}  # by attempt
        self._jobs: dict[str, str] = {}  # attempt -> job id
        self._cpu: dict[int, tuple[float, float]] = {}  # session -> CPU seconds, and when they were read
        self._tails: dict[str, OutputTail] = {}  # by attempt

    # -- start --------------------------------------------------------------------------------

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool] = lambda: True) -> Attempt:
        if launch.directory and not Path(launch.directory).is_dir():
            raise LaunchError(f"The working directory {launch.directory} does not exist on this machine.")
        try:
            folder = self._attempt_store.create(launch)
        except FileExistsError:
            found = self._inspect(self._attempt_store.folder(launch), launch)
            if found.attempt and found.alive:
                return found.attempt
            raise LaunchError(f"Attempt {launch.id} was launched before and has ended.") from None
        if not still_wanted():
            self._attempt_store.discard(launch)
            raise LaunchCancelled("the job was stopped, or the lease was lost, during the launch")
        try:
            child = self._spawn(launch, folder)
        except (OSError, ValueError) as error:
            self._attempt_store.discard(launch)
            raise LaunchError(f"The process could not be started: {error}.") from error
        self._children[launch.id] = child
        return self._track(launch, identity_of(child.pid), time.time())

    def _spawn(self, launch: Launch, folder: Path) -> subprocess.Popen[bytes]:
        env = {**os.environ, **launch.env, **device_environment(launch)}
        env["GPU_FLOWS_ATTEMPT_FOLDER"] = str(folder)
        # A directory of its own, as in Prefect's process worker: pull steps clone into it, and two runs at
        # the same time must not share a clone.
        work = Path(launch.directory) if launch.directory else folder / WORK
        work.mkdir(exist_ok=True)
        with (folder / supervisor.OUTPUT_FILE).open("ab") as output:
            # Not asyncio's: from Python 3.12 on that kills the child when its event loop ends.
            return subprocess.Popen(
                [*supervise(folder, launch.start_before), *launch.command],
                env=env,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._claims_of(launch.devices),
            )

    def _track(self, launch: Launch, identity: ProcessIdentity, started: float) -> Attempt:
        self._seen_alive[launch.id] = identity
        self._jobs[launch.id] = launch.job.id
        return Attempt(launch, f"{identity.host}:{identity.pid}", started)

    # -- end ----------------------------------------------------------------------------------

    async def wait(self, attempt: Attempt) -> End:
        name, folder = attempt.launch.id, self._attempt_store.folder(attempt.launch)
        identity, child = self._seen_alive.get(name), self._children.get(name)
        if identity and identity.is_foreign:
            if not await _wait_for_foreign(folder):
                detail = f"Its machine {identity.host} has given no sign of life for {SILENT_AFTER_S:.0f} s."
                return End(detail=detail, lost=True)
        elif identity:
            await _wait_for_exit(identity.pid, lambda: self._is_alive(name, identity))
        end = _read_end(folder, attempt.started)
        if end is None or sys.platform != "linux":  # only Linux gives orphans to the supervisor
            # The supervisor was killed. Its session id is its pid only if this worker has seen it alive
            # under that pid. Otherwise the pid may be reused, and only the attempt's name identifies it.
            await asyncio.to_thread(kill_attempt, name, identity.pid if identity else None)
        end = end or End(child.wait() if child else None)
        if end.exit_code == 0 and not attempt.launch.handles_intents:
            return end
        # The process of a flow ends with 0 also if the flow has failed.
        return replace(end, tail=await asyncio.to_thread(read_end, folder / supervisor.OUTPUT_FILE))

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        launch = attempt.launch
        identity = self._seen_alive.get(launch.id)
        if not identity or not self._is_alive(launch.id, identity):
            return
        asked_ago = self._attempt_store.mark_stop_requested(launch, intent)
        if asked_ago is None:
            self._signal(launch, identity, signal.SIGUSR1 if launch.handles_intents else signal.SIGTERM)
        deadline = time.monotonic() + launch.grace_s - (asked_ago or 0.0)
        while self._is_alive(launch.id, identity) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if not self._is_alive(launch.id, identity):
            return
        if identity.is_foreign:
            self._signal(launch, identity, signal.SIGKILL)
        else:
            await asyncio.to_thread(kill_attempt, launch.id, identity.pid)

    def _signal(self, launch: Launch, identity: ProcessIdentity, number: signal.Signals) -> None:
        """Send a signal to the supervisor, which passes it on."""
        with contextlib.suppress(OSError):
            if identity.is_foreign:
                write_atomically(self._attempt_store.folder(launch) / supervisor.SIGNAL, str(int(number)))
            else:
                os.kill(identity.pid, number)

    # -- recovery -----------------------------------------------------------------------------

    async def find(self) -> list[Found]:
        return [
            self._inspect(folder, launch)
            for folder, launch in self._attempt_store.open_attempts()
            # One that this worker launched itself is in its hands, even if it has not written its pid yet.
            if launch.runtime == "process" and launch.id not in self._children
        ]

    def _inspect(self, folder: Path, launch: Launch) -> Found:
        pid_file, child = folder / supervisor.PID, self._children.get(launch.id)
        if child and child.poll() is None:  # launched by this worker, perhaps a moment ago
            return Found(launch, self._track(launch, identity_of(child.pid), time.time()), alive=True)
        if not pid_file.exists():
            (folder / supervisor.FENCE).touch()
        end = _read_end(folder, 0.0)
        try:
            identity, started = read_identity(pid_file), pid_file.stat().st_mtime
        except (OSError, ValueError):
            return Found(launch, None, alive=False)
        if end and end.unstarted:
            return Found(launch, None, alive=False)
        if end is None and self._is_alive(launch.id, identity):
            return Found(launch, self._track(launch, identity, started), alive=True)
        return Found(launch, Attempt(launch, f"{identity.host}:{identity.pid}", started), alive=False)

    def forget(self, launch: Launch) -> None:
        self._children.pop(launch.id, None)
        self._seen_alive.pop(launch.id, None)
        self._jobs.pop(launch.id, None)
        self._tails.pop(launch.id, None)
        self._attempt_store.mark_ended(launch)
        # In a thread of its own: a large clone takes a while to remove, and the devices are free already.
        work = self._attempt_store.ended / launch.id / WORK
        if work.is_dir():
            threading.Thread(target=shutil.rmtree, args=(work, True), daemon=True).start()

    # -- observation --------------------------------------------------------------------------

    def sample_activity(self) -> dict[str, float]:
        alive = list(self._seen_alive.items())  # a copy: this runs in another thread than the loop
        sessions = {
            identity.pid: self._jobs.get(attempt, "")
            for attempt, identity in alive
            if not identity.is_foreign
        }
        if not sessions:
            return {}
        spent = dict.fromkeys(sessions, 0.0)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                session = os.getsid(process.pid)
                if session in spent:
                    times = process.cpu_times()
                    spent[session] += times.user + times.system
        now, busy = time.monotonic(), {}
        for session, seconds in spent.items():
            before, at = self._cpu.get(session, (seconds, now))
            if now > at:
                busy[sessions[session]] = min(100.0, max(0.0, 100 * (seconds - before) / (now - at)))
        self._cpu = {session: (seconds, now) for session, seconds in spent.items()}
        return busy

    def read_output(self, launch: Launch) -> list[str]:
        if launch.id not in self._jobs:  # forgotten
            return []
        path = self._attempt_store.folder(launch) / supervisor.OUTPUT_FILE
        return self._tails.setdefault(launch.id, OutputTail(path)).read()

    def _is_alive(self, attempt: str, identity: ProcessIdentity) -> bool:
        child = self._children.get(attempt)
        if child is not None:
            return child.poll() is None
        if identity.is_foreign:  # unknown until `wait` returns
            return not (self._attempt_store.attempts / attempt / supervisor.EXIT).exists()
        return identity.is_alive(attempt)


def supervise(folder: Path, start_before: float) -> list[str]:
    """Return the command line that runs the command after it under a supervisor."""
    program = importlib.util.cache_from_source(supervisor.__file__)  # compiled: saves a few milliseconds
    if not os.path.exists(program):
        program = supervisor.__file__
    return [sys.executable, "-I", "-S", program, str(folder), repr(start_before)]


def _read_end(folder: Path, started: float) -> End | None:
    """Return what the supervisor has stored about the end; None if it has stored nothing."""
    path = folder / supervisor.EXIT
    try:
        code, ended = path.read_text(), path.stat().st_mtime
        return End(unstarted=True) if code == supervisor.UNSTARTED else End(int(code), max(started, ended))
    except (OSError, ValueError):
        return None


async def _wait_for_foreign(folder: Path) -> bool:
    """Return True when the supervisor on another machine has stored an end, and False if it has been silent
    for too long. Only this machine's clock is used; those of others may differ."""
    last_sign, seen_at = 0.0, time.monotonic()
    while time.monotonic() - seen_at < SILENT_AFTER_S:
        if (folder / supervisor.EXIT).exists():
            return True
        with contextlib.suppress(OSError):
            sign = (folder / supervisor.ALIVE).stat().st_mtime
            if sign != last_sign:
                last_sign, seen_at = sign, time.monotonic()
        await asyncio.sleep(min(supervisor.BEAT_S, SILENT_AFTER_S / 10))
    return False


async def _wait_for_exit(pid: int, alive: Callable[[], bool]) -> None:
    """Return as soon as the process has ended. Polls where the kernel has no pidfd."""
    with contextlib.suppress(OSError, AttributeError):
        watched = os.pidfd_open(pid)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(watched, ended.set)
        try:
            if alive():
                await ended.wait()
        finally:
            loop.remove_reader(watched)
            os.close(watched)
    while alive():
        await asyncio.sleep(0.1)

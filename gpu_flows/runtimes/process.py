"""Jobs as processes of the worker's machine: the default.

The folder of an attempt in the attempt store also holds

    pid            the process's pid and start time, written by the process before it becomes the job
    fence          created by a worker that found no pid: a process that sees it exits before the job starts
    output.log     everything the process prints
    work           the process's working directory, unless the job names one; removed after the attempt

A process runs in its own session with its output in a file, so it outlives its worker. It is identified
by pid and start time (as the kernel counts it, with the boot id), so a reused pid is never mistaken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, LaunchError, device_environment

WORK = "work"

# The shell writes its pid, exits if there is a fence, and then becomes the job. If any step fails (a full
# disk, a missing folder), the job does not start.
_LAUNCHER = """
start_time="$(cut -d ' ' -f 22 /proc/$$/stat 2>/dev/null) $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "$$ $start_time" >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && [ ! -e "$0/fence" ] && exec "$@"
exit 75
"""


class ProcessRuntime:
    """A `Runtime` whose attempts are processes of this machine."""

    def __init__(self, attempt_store: AttemptStore) -> None:
        self._attempt_store = attempt_store
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._seen_alive: dict[str, tuple[int, str]] = {}  # attempt -> pid and start time
        self._jobs: dict[str, str] = {}  # attempt -> job id
        self._cpu: dict[int, tuple[float, float]] = {}  # session -> CPU seconds, and when they were read

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
        try:
            child = self._spawn(launch, folder)
        except (OSError, ValueError) as error:
            self._attempt_store.discard(launch)
            raise LaunchError(f"The process could not be started: {error}.") from error
        self._children[launch.id] = child
        return self._track(launch, child.pid, _start_time(child.pid), time.time())

    def _spawn(self, launch: Launch, folder: Path) -> subprocess.Popen[bytes]:
        env = {**os.environ, **launch.env, **device_environment(launch)}
        env["GPU_FLOWS_ATTEMPT_FOLDER"] = str(folder)
        # A directory of its own, as in Prefect's process worker: pull steps clone into it, and two runs at
        # the same time must not share a clone.
        work = Path(launch.directory) if launch.directory else folder / WORK
        work.mkdir(exist_ok=True)
        with (folder / "output.log").open("ab") as output:
            # Not asyncio's: from Python 3.12 on that kills the child when its event loop ends.
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, str(folder), *launch.command],
                env=env,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _track(self, launch: Launch, pid: int, start_time: str, started: float) -> Attempt:
        self._seen_alive[launch.id] = (pid, start_time)
        self._jobs[launch.id] = launch.job.id
        return Attempt(launch, f"{socket.gethostname()}:{pid}", started)

    # -- end ----------------------------------------------------------------------------------

    async def wait(self, attempt: Attempt) -> End:
        name = attempt.launch.id
        pid, start_time = self._seen_alive.get(name, (0, ""))
        if pid:
            await _wait_for_exit(pid, lambda: self._is_alive(name, pid, start_time))
        child = self._children.get(name)
        # Kill what the job left running. Its session id is its pid only if this worker has seen it alive
        # under that pid. Otherwise the pid may be reused, and only the attempt's name identifies it.
        await asyncio.to_thread(_kill_attempt, name, pid or None)
        return End(child.wait() if child else None)

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        launch = attempt.launch
        pid, start_time = self._seen_alive.get(launch.id, (0, ""))
        if not pid or not self._is_alive(launch.id, pid, start_time):
            return
        asked_ago = self._attempt_store.mark_stop_requested(launch, intent)
        if asked_ago is None:
            with contextlib.suppress(OSError):
                if launch.handles_intents:
                    os.kill(pid, signal.SIGUSR1)
                else:
                    os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + launch.grace_s - (asked_ago or 0.0)
        while self._is_alive(launch.id, pid, start_time) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._is_alive(launch.id, pid, start_time):
            await asyncio.to_thread(_kill_attempt, launch.id, pid)

    # -- recovery -----------------------------------------------------------------------------

    async def find(self) -> list[Found]:
        return [
            self._inspect(folder, launch)
            for folder, launch in self._attempt_store.open_attempts()
            if launch.runtime == "process"
        ]

    def _inspect(self, folder: Path, launch: Launch) -> Found:
        if not (folder / "pid").exists():
            (folder / "fence").touch()
        try:
            pid, start_time = _read_pid(folder / "pid")
            started = (folder / "pid").stat().st_mtime
        except (OSError, ValueError):
            return Found(launch, None, alive=False)
        if self._is_alive(launch.id, pid, start_time):
            return Found(launch, self._track(launch, pid, start_time, started), alive=True)
        return Found(launch, Attempt(launch, f"{socket.gethostname()}:{pid}", started), alive=False)

    def forget(self, launch: Launch) -> None:
        self._children.pop(launch.id, None)
        self._seen_alive.pop(launch.id, None)
        self._jobs.pop(launch.id, None)
        self._attempt_store.mark_ended(launch)
        # In a thread of its own: a large clone takes a while to remove, and the devices are free already.
        work = self._attempt_store.ended / launch.id / WORK
        if work.is_dir():
            threading.Thread(target=shutil.rmtree, args=(work, True), daemon=True).start()

    # -- observation --------------------------------------------------------------------------

    def sample_activity(self) -> dict[str, float]:
        alive = list(self._seen_alive.items())  # a copy: this runs in another thread than the loop
        sessions = {pid: self._jobs.get(attempt, "") for attempt, (pid, _) in alive}
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

    def _is_alive(self, attempt: str, pid: int, start_time: str) -> bool:
        child = self._children.get(attempt)
        if child is not None:
            return child.poll() is None
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return _start_time(pid) == start_time if start_time else _read_attempt(pid) == attempt
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


def _start_time(pid: int) -> str:
    """Return the kernel's start time of the process and the boot id; empty on systems without /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{stat.rpartition(')')[2].split()[19]} {boot}"


def _read_pid(path: Path) -> tuple[int, str]:
    pid, _, start_time = path.read_text().strip().partition(" ")
    return int(pid), start_time.strip()


def _read_attempt(pid: int) -> str:
    """Return the attempt that a process carries in its environment. Reads /proc where there is one: this
    is called for every process of the machine while devices wait to be released, and psutil is slower."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except FileNotFoundError:
        return psutil.Process(pid).environ().get("GPU_FLOWS_ATTEMPT", "")
    name = b"GPU_FLOWS_ATTEMPT="
    return next((value[len(name) :].decode() for value in variables if value.startswith(name)), "")


def kill_all(home: Path) -> int:
    """Kill every job that was launched under this gpu-flows home, and return their number."""
    attempts = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            env = process.environ()
            folder = env.get("GPU_FLOWS_ATTEMPT_FOLDER", "")
            if folder and Path(folder).is_relative_to(home):
                attempts.add((env["GPU_FLOWS_ATTEMPT"], os.getsid(process.pid)))
    for attempt, session in attempts:
        _kill_attempt(attempt, session)
    return len({attempt for attempt, _ in attempts})


def _kill_attempt(attempt: str, session: int | None) -> None:
    """Kill all processes of the attempt's session, and those of other sessions that carry its name:
    torchrun starts its workers in sessions of their own."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if (session and os.getsid(pid) == session) or _read_attempt(pid) == attempt:
                os.kill(pid, signal.SIGKILL)

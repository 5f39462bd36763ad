"""Jobs as processes of this machine: the embedded default.

In its folder of the store of attempts each attempt has

    pid            written by the process itself before it becomes the job: its pid and its birth
    fence          laid by a worker that found no pid: a process that comes too late stops at it
    intent         why it is being asked to stop
    output.log     everything it prints

A process runs in a session of its own with its output in a file, so it outlives its worker. It is
recognised by pid and birth (the kernel's start time and boot), so a reused pid is never mistaken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, LaunchError, device_environment

# The shell notes who it is, gives way if a fence was laid, and then becomes the job. Whatever
# goes wrong on the way (a full disk, a folder that is gone), it does not become the job.
_LAUNCHER = """
birth="$(cut -d ' ' -f 22 /proc/$$/stat 2>/dev/null) $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "$$ $birth" >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && [ ! -e "$0/fence" ] && exec "$@"
exit 75
"""


class ProcessRuntime:
    def __init__(self, attempt_store: AttemptStore) -> None:
        self._attempt_store = attempt_store
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._alive_once: dict[str, tuple[int, str]] = {}  # attempt -> pid and birth, seen alive by us
        self._jobs: dict[str, str] = {}  # attempt -> job id
        self._cpu: dict[int, tuple[float, float]] = {}  # session -> (cpu seconds, at)

    # -- start --------------------------------------------------------------------------------

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool] = lambda: True) -> Attempt:
        if launch.directory and not Path(launch.directory).is_dir():
            raise LaunchError(f"The working directory {launch.directory} does not exist on this machine.")
        try:
            folder = self._attempt_store.enter(launch)
        except FileExistsError:
            found = self._look_at(self._attempt_store.folder(launch), launch)
            if found.attempt and found.alive:
                return found.attempt
            raise LaunchError(f"Attempt {launch.id} was launched before and has ended.") from None
        try:
            child = self._spawn(launch, folder)
        except (OSError, ValueError) as error:
            self._attempt_store.strike(launch)
            raise LaunchError(f"The process could not be started: {error}.") from error
        self._children[launch.id] = child
        return self._note_alive(launch, child.pid, _birth(child.pid), time.time())

    def _spawn(self, launch: Launch, folder: Path) -> subprocess.Popen[bytes]:
        env = {**os.environ, **launch.env, **device_environment(launch)}
        env["GPU_FLOWS_ATTEMPT_FOLDER"] = str(folder)
        with (folder / "output.log").open("ab") as output:
            # Not asyncio's: from Python 3.12 on that kills the child when its event loop ends.
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, str(folder), *launch.command],
                env=env,
                cwd=launch.directory or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _note_alive(self, launch: Launch, pid: int, birth: str, started: float) -> Attempt:
        self._alive_once[launch.id] = (pid, birth)
        self._jobs[launch.id] = launch.job.id
        return Attempt(launch, f"{socket.gethostname()}:{pid}", started)

    # -- end ----------------------------------------------------------------------------------

    async def wait(self, attempt: Attempt) -> End:
        name = attempt.launch.id
        pid, birth = self._alive_once.get(name, (0, ""))
        if pid:
            await _gone(pid, lambda: self._alive(name, pid, birth))
        child = self._children.get(name)
        # What the job left behind goes with it. Its session is its own only while we know that it
        # was alive under this very pid; of a job that died unseen, only the name is left.
        await asyncio.to_thread(_kill_attempt, name, pid or None)
        return End(child.wait() if child else None)

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        launch = attempt.launch
        pid, birth = self._alive_once.get(launch.id, (0, ""))
        if not pid or not self._alive(launch.id, pid, birth):
            return
        asked_ago = self._attempt_store.note_stop(launch, intent)
        if asked_ago is None:
            with contextlib.suppress(OSError):
                if launch.hears_intents:
                    os.kill(pid, signal.SIGUSR1)
                else:
                    os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + launch.grace_s - (asked_ago or 0.0)
        while self._alive(launch.id, pid, birth) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._alive(launch.id, pid, birth):
            await asyncio.to_thread(_kill_attempt, launch.id, pid)

    # -- afterwards ---------------------------------------------------------------------------

    async def find(self) -> list[Found]:
        ours = (each for each in self._attempt_store.open_attempts() if each[1].container is None)
        return [self._look_at(folder, launch) for folder, launch in ours]

    def _look_at(self, folder: Path, launch: Launch) -> Found:
        if not (folder / "pid").exists():
            (folder / "fence").touch()
        try:
            pid, birth = _read_pid(folder / "pid")
            started = (folder / "pid").stat().st_mtime
        except (OSError, ValueError):
            return Found(launch, None, alive=False)
        if self._alive(launch.id, pid, birth):
            return Found(launch, self._note_alive(launch, pid, birth, started), alive=True)
        return Found(launch, Attempt(launch, f"{socket.gethostname()}:{pid}", started), alive=False)

    def forget(self, launch: Launch) -> None:
        self._children.pop(launch.id, None)
        self._alive_once.pop(launch.id, None)
        self._jobs.pop(launch.id, None)
        self._attempt_store.close(launch)

    # -- looking ------------------------------------------------------------------------------

    def activity(self) -> dict[str, float]:
        alive = list(self._alive_once.items())  # the sampler's thread asks, while the loop goes on
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

    def _alive(self, attempt: str, pid: int, birth: str) -> bool:
        child = self._children.get(attempt)
        if child is not None:
            return child.poll() is None
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return _birth(pid) == birth if birth else _mark(pid) == attempt
        return False


async def _gone(pid: int, alive: Callable[[], bool]) -> None:
    """Returns the moment the process has ended; by asking now and then where the kernel cannot tell."""
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


def _birth(pid: int) -> str:
    """When the process began, as the kernel says it, and in which boot; empty where it does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{stat.rpartition(')')[2].split()[19]} {boot}"


def _read_pid(path: Path) -> tuple[int, str]:
    pid, _, birth = path.read_text().strip().partition(" ")
    return int(pid), birth.strip()


def _mark(pid: int) -> str:
    """The attempt that a process carries in its environment. Straight from the kernel where that is
    possible: a device waits while every process of the machine is asked."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except FileNotFoundError:
        return psutil.Process(pid).environ().get("GPU_FLOWS_ATTEMPT", "")
    name = b"GPU_FLOWS_ATTEMPT="
    return next((each[len(name) :].decode() for each in variables if each.startswith(name)), "")


def kill_all(home: Path) -> int:
    """Kill every job that was launched under this gpu-flows home. How many there were."""
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
    """Kill everything that lives in the attempt's session, and whatever left it but still carries
    the attempt's name (torchrun gives its workers sessions of their own)."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if (session and os.getsid(pid) == session) or _mark(pid) == attempt:
                os.kill(pid, signal.SIGKILL)

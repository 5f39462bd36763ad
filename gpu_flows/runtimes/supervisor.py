"""The small program between the worker and a job's command.

    python -I -S supervisor.py FOLDER LATEST COMMAND...

It outlives its worker, and writes into the attempt's folder

    pid      its pid, start time, boot id and host, before the command starts
    alive    touched every few seconds, for workers of other machines that share the folder
    exit     the exit code of the command (negative: a signal), once nothing of it runs; `unstarted` if the
             command was not started, because of a fence or because it was later than LATEST

and reads

    fence    created by a worker that found no pid: the command must not start any more
    signal   the number of a signal for the command, from a worker of another machine

Orphans below it become its children (it is their "subreaper"), even daemons that left session, group and
environment behind. It kills them when the command has ended. If the supervisor is killed itself, the kernel
kills the command. If the job removes the attempt's folder, the supervisor restores it, so that the next
worker finds the attempt.

It uses only the standard library, and little of it: each import delays the start of every job.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # importing `typing` would take longer than the rest
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal  # without the enums of `signal`, which take 5 ms to create

LAUNCH_FILE, OUTPUT_FILE = "attempt.json", "output.log"
PID, ALIVE, EXIT, FENCE, SIGNAL = "pid", "alive", "exit", "fence", "signal"
UNSTARTED = "unstarted"
NOT_STARTED = 75  # the supervisor's own exit code if it did not start the command (EX_TEMPFAIL)
BEAT_S = 2.0

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_FOR_S = 10.0  # a process that hangs in the kernel may survive SIGKILL for long

# SIGUSR1 asks a flow's process to stop, which then stops its own children. The others mean the whole group.
_FOR_PROCESS = (signal.SIGUSR1, signal.SIGUSR2)
_FOR_GROUP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(folder: str, latest: float, command: list[str]) -> int:
    """Run the command and return the exit code for this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    attempt = Attempt(folder)
    # Signals are blocked and taken from a queue. A handler might run too late: a signal that arrives just
    # before a system call blocks does not interrupt the call.
    signals = {int(number) for number in (signal.SIGCHLD, signal.SIGALRM, *_FOR_PROCESS, *_FOR_GROUP)}
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, some systems drop the signal
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    attempt.write(PID, attempt.identity)
    attempt.write(ALIVE, "")
    if attempt.is_fenced() or 0 < latest < time.time():
        attempt.write(EXIT, UNSTARTED)
        return NOT_STARTED
    job = os.fork()
    if job == 0:
        _become(command, set(unblocked))
    try:
        os.setpgid(job, job)  # the child does this too, but a signal may arrive before
    except OSError:
        pass
    code = _follow(job, signals, attempt)
    _kill_descendants()
    attempt.close(code)
    return code if code >= 0 else 128 - code


class Attempt:
    """The folder of the attempt, with the files that a worker needs to find it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(self.path(LAUNCH_FILE)) as file:
            self.launch = file.read()
        self.identity = identify(os.getpid())

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> None:
        """Write a file in one step. Raises OSError."""
        scratch = self.path(f"{name}.new")
        with open(scratch, "w") as file:
            file.write(text)
        os.replace(scratch, self.path(name))

    def is_fenced(self) -> bool:
        """Whether a worker counts the attempt as not started. It may have moved the folder away by now."""
        return os.path.exists(self.path(FENCE)) or not os.path.exists(self.path(PID))

    def beat(self) -> None:
        """Show that the attempt is alive."""
        try:
            os.utime(self.path(ALIVE))
        except OSError:
            self.restore()

    def take_signal(self) -> int:
        """Return the signal that a worker of another machine has left; 0 if there is none."""
        try:
            with open(self.path(SIGNAL)) as file:
                number = int(file.read())
            os.unlink(self.path(SIGNAL))
            return number
        except (OSError, ValueError):
            return 0

    def close(self, code: int) -> None:
        """Store the exit code of the command."""
        self.restore()
        try:
            self.write(EXIT, str(code))
        except OSError:
            pass  # a worker that watches still sees it as the exit code of this process

    def restore(self) -> None:
        """Write again what the job has removed. The job goes on if that fails: on a full disk, or if the
        folder of the whole pool was removed."""
        try:
            if not os.path.isdir(self.folder):
                os.mkdir(self.folder)
            for name, text in ((LAUNCH_FILE, self.launch), (PID, self.identity), (ALIVE, "")):
                if not os.path.exists(self.path(name)):
                    self.write(name, text)
        except OSError:
            pass


def identify(pid: int) -> str:
    """Return what tells a process of this machine from all others: pid, start time, boot id and host."""
    try:
        with open(f"/proc/{pid}/stat") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
            started = f"{stat.read().rpartition(')')[2].split()[19]} {boot.read().strip()}"
    except OSError:
        started = "- -"
    return f"{pid} {started} {os.uname().nodename}"


def _become(command: list[str], mask: set[int]) -> NoReturn:
    """Replace this process, a child of the supervisor, by the command in a process group of its own."""
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the command must not
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _follow(job: int, signals: set[int], attempt: Attempt) -> int:
    """Pass signals on until the command has ended, and return its exit code."""
    signal.setitimer(signal.ITIMER_REAL, BEAT_S, BEAT_S)  # sends SIGALRM
    while True:
        received = signal.sigwait(signals)
        if received == signal.SIGALRM:
            attempt.beat()
            if number := attempt.take_signal():
                _forward(job, number)
        elif received != signal.SIGCHLD:
            _forward(job, received)
        elif (code := _reap(job)) is not None:
            return code


def _reap(job: int) -> int | None:
    """Collect every child that has ended. Return the exit code of the command, or None if it runs."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == job:
            code = os.waitstatus_to_exitcode(status)


def _forward(job: int, number: int) -> None:
    try:
        if number in _FOR_PROCESS:
            os.kill(job, number)
        else:
            os.killpg(job, number)
    except OSError:
        pass


def _kill_descendants() -> None:
    """Kill everything below this process. The children of a killed process become children of this one."""
    deadline, pause = time.monotonic() + _KILL_FOR_S, 0.001
    while (children := _list_children()) and time.monotonic() < deadline:
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(pause)
        _reap(0)
        pause = min(2 * pause, 0.1)


def _list_children() -> list[int]:
    own = str(os.getpid())
    try:
        with open(f"/proc/{own}/task/{own}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this file, or a system without /proc
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
        return [pid for pid in pids if _parent(pid) == own]


def _parent(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where the system has such attributes."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _run() -> int:
    try:
        return main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
    except OSError as error:
        os.write(2, f"The job was not started: {error}\n".encode())
        return NOT_STARTED


if __name__ == "__main__":
    os._exit(_run())  # without the interpreter's slow end

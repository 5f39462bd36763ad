"""Commands for tests, and a check that a process has ended."""

from __future__ import annotations

import sys
import textwrap

import psutil

STUBBORN = """
    import os, signal, subprocess, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child processes inherit it
    sleep = ["sleep", "1000"]
    print("pid", subprocess.Popen(sleep).pid)
    print("pid", subprocess.Popen(sleep, start_new_session=True).pid)
    subprocess.run(["/bin/sh", "-c", "setsid sleep 1000 & echo pid $!"])  # a daemon
    print("pid", os.getpid())
    print("ready")
    time.sleep(1000)
"""


def python(script: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(script)]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

"""Identifies a process beyond its pid, which the system may give to another process later."""

from __future__ import annotations

import os
from pathlib import Path


def start_time(pid: int) -> str:
    """Return the kernel's start time of the process and the boot id; empty on systems without /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{stat.rpartition(')')[2].split()[19]} {boot}"


def is_alive(pid: int, started: str) -> bool:
    """Whether the process with this pid runs, and is the one that started at that time."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, for another user
    return start_time(pid) == started

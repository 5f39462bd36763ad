"""The most memory that each running attempt has used on each of its real devices, from the driver's readings.

A process belongs to the attempt that its environment names, whichever runtime started it. Where the driver
does not tell the memory of single processes, the memory of a device that one job holds alone is that job's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from gpu_flows.checkpoints import contract
from gpu_flows.devices.base import Reading
from gpu_flows.runtimes.base import Launch

MOST_PROCESSES = 10_000  # whose attempts are remembered


def find_attempt(pid: int) -> str:
    """Return the id of the attempt that a process belongs to; empty if it belongs to none, or has ended."""
    try:
        return psutil.Process(pid).environ().get(contract.ATTEMPT, "")
    except (psutil.Error, OSError):
        return ""


def find_start(pid: int) -> float:
    """Return when a process was started, which tells it from an earlier one with its number; 0 if it has
    ended."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, OSError):
        return 0.0


class MemoryPeaks:
    """`holders` returns the jobs on a device. All methods run in the worker's event loop."""

    def __init__(
        self,
        holders: Callable[[str], Mapping[str, int]],
        find: Callable[[int], str] = find_attempt,
        find_start: Callable[[int], float] = find_start,
    ) -> None:
        self._holders, self._find, self._find_start = holders, find, find_start
        self._attempts: dict[tuple[int, float], str] = {}  # by process: its number and its start
        self._peaks: dict[str, dict[str, float]] = {}  # by attempt or, where only that is known, by job

    def add(self, readings: list[Reading]) -> None:
        """Update the peaks."""
        for reading in readings:
            if not reading.processes:
                continue
            used: dict[str, float] = {}
            for pid, mb in zip(reading.processes, reading.process_memory_mb, strict=False):
                if mb and (attempt := self._find_once(pid)):
                    used[attempt] = used.get(attempt, 0.0) + mb
            holders = self._holders(reading.device_id)
            tells = any(reading.process_memory_mb)  # if it does, what belongs to no attempt is a stranger's
            if not tells and len(holders) == 1 and reading.memory_used_mb:
                used[next(iter(holders))] = reading.memory_used_mb
            for owner, mb in used.items():
                peaks = self._peaks.setdefault(owner, {})
                peaks[reading.device_id] = max(mb, peaks.get(reading.device_id, 0.0))

    def take(self, launch: Launch) -> dict[str, float]:
        """Return the peaks of an attempt that has ended, by device, and forget them."""
        by_job = self._peaks.pop(launch.job.id, {})
        return {**by_job, **self._peaks.pop(launch.id, {})}

    def _find_once(self, pid: int) -> str:
        process = pid, self._find_start(pid)
        if process not in self._attempts:
            if len(self._attempts) > MOST_PROCESSES:
                self._attempts.clear()  # those of processes that ended long ago are among them
            self._attempts[process] = self._find(pid)
        return self._attempts[process]

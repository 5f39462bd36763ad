"""All processes that a command has started, including those that left its process group."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

MARK = "GPU_FLOWS_COMMAND"  # in the environment of every process that a command starts


class ProcessTree:
    """The processes of a command.

    A process belongs to the command if it is in its process group, descends from it, or has its mark in
    the environment. A daemon leaves the group and its parent, but keeps the mark. The leader must not be
    reaped while the tree is in use, so that its id, which is also the group's id, is not used again.
    """

    def __init__(self, leader: int, mark: str) -> None:
        self._group = leader
        self._mark = mark
        self._leader = psutil.Process(leader)
        self._descendants: set[psutil.Process] = set()

    @property
    def leader_ended(self) -> bool:
        return not _is_running(self._leader)

    def alive(self) -> list[psutil.Process]:
        """Return the processes that are still running."""
        with suppress(psutil.Error):
            self._descendants.update(self._leader.children(recursive=True))
        return [
            process for process in psutil.process_iter() if self._contains(process) and _is_running(process)
        ]

    def in_group(self, process: psutil.Process) -> bool:
        with suppress(OSError):
            return os.getpgid(process.pid) == self._group
        return False

    def _contains(self, process: psutil.Process) -> bool:
        if self.in_group(process) or process in self._descendants:
            return True
        with suppress(psutil.Error, OSError):
            return process.environ().get(MARK) == self._mark
        return False


def _is_running(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False

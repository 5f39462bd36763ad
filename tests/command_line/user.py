"""A user at a terminal, whose settings name a running stack."""

from __future__ import annotations

from pathlib import Path

from command_line.run import CommandResult, gpu_flows_process
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack


class User:
    def __init__(self, stack: Stack, directory: Path, flow: str = "command") -> None:
        self.stack, self.directory, self.pool = stack, directory, Pool(stack, flow=flow)

    def run(self, *words: str) -> CommandResult:
        return gpu_flows_process(*words, env=self.stack.environment(), cwd=self.directory)

    def submit(self, *words: str) -> str:
        """Submit a job and return the id of its run."""
        return str(self.run("submit", "--json", *words).json["id"])

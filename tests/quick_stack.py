"""A stack that starts faster than a user's: its workers are forks, and no process sets its pool up."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from typing import cast

from forked import Forked
from prefect.settings import PREFECT_API_URL, temporary_settings

from gpu_flows.blocks import GpuCluster
from gpu_flows.bootstrap import pool_setup
from gpu_flows.bootstrap.local_stack import PREFECT, Stack


class QuickStack(Stack):
    def set_up(
        self, cluster: str = "", blocks: str = "default", docker: bool = False, hosts: Sequence[str] = ()
    ) -> None:
        block = GpuCluster.of(cluster, docker, list(hosts)) if cluster or docker or hosts else None
        with temporary_settings({PREFECT_API_URL: self.api_url}):
            self._note_set_up(asyncio.run(pool_setup.set_up(self.pool, block, blocks)))

    def _start(
        self, command: list[str], log: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        if command[len(PREFECT)] != "worker":
            return super()._start(command, log, env)
        environment = {**self.environment(), **(env or {})}
        _, _, module, *arguments = command
        return cast("subprocess.Popen[bytes]", Forked(module, arguments, environment, self.home / log))

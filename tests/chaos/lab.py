"""What the cases need: stacks on the shared server, other machines, workers that come back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from chaos.workload import Workload
from live import Pool
from proxy import Proxy
from quick_stack import QuickStack

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.common.retry import wait_until
from gpu_flows.worker.status import Status


class OtherMachine(Stack):
    """A stack whose workers run under another host name, as if on another machine."""

    def _start(
        self, command: list[str], log: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        renamed = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.home.name, *command]
        return super()._start(renamed, log, env)


class Lab:
    """Makes stacks, which are stopped when it closes. `seconds` is how long a case keeps up its load."""

    def __init__(self, server: Stack, folder: Path, seconds: float) -> None:
        self.server, self.folder, self.seconds = server, folder, seconds
        self.random = random.Random(int(os.environ.get("CHAOS_SEED", "0")))
        self.round = 0
        self._opened = ExitStack()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def stack(self, cluster: str = "1x8:GTX 1080 Ti:11", home: Path | None = None) -> Stack:
        """A new pool on the shared server, without a worker."""
        pool = f"chaos-{time.time_ns()}"
        stack = self.keep(QuickStack(home or self.folder / pool, pool=pool, api_url=self.server.api_url))
        stack.set_up(cluster, blocks=pool)
        return stack

    def second(self, stack: Stack, kind: type[Stack] = QuickStack, home: Path | None = None) -> Stack:
        """The same pool, for a second worker. With the same home, it serves the pool only when the first
        worker has ended. With another home, the two are as on two machines, and the lease decides."""
        return self.keep(kind(home or stack.home, pool=stack.pool, api_url=stack.api_url))

    def own_server(self, stack: Stack) -> Stack:
        """Start a stack with a server of its own, and set its pool up."""
        self.keep(stack).start_server()
        stack.set_up("1x8:GTX 1080 Ti:11", blocks=stack.pool)
        return stack

    def keep(self, stack: Stack) -> Stack:
        self._opened.callback(stack.stop_jobs)
        return self._opened.enter_context(stack)

    def proxy(self) -> Proxy:
        return self._opened.enter_context(Proxy(self.server.api_url))

    def workload(self, stack: Stack, *others: Stack) -> Workload:
        """Load for a pool. `others` are the stacks of its workers with homes of their own."""
        homes = [other.home for other in others]
        return Workload(Pool(stack), self.folder / f"journal-{stack.pool}", self.random, homes)

    def rounds(self) -> Iterator[int]:
        """Count rounds from 1 until the time is over."""
        deadline = time.monotonic() + self.seconds
        while self.round == 0 or time.monotonic() < deadline:
            self.round += 1
            yield self.round

    def pause(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))


def leads(stack: Stack) -> bool:
    """Whether the worker of this stack says that it acts for its pool. It says so once a second."""
    try:
        status = Status(**json.loads((stack.home / "pools" / stack.pool / "status.json").read_text()))
    except (OSError, ValueError):
        return False
    return status.leads and status.fresh


def find_leader(stacks: Sequence[Stack]) -> Stack:
    """Wait until one of these workers leads."""
    found = wait_until(lambda: [stack for stack in stacks if leads(stack)], 150)
    assert len(found) == 1, f"{len(found)} workers lead"
    return found[0]

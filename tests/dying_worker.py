"""A real worker that kills itself, once, the first time it comes to a given point.

    python dying_worker.py POOL POINT

Points: before_claim, after_claim, before_launch (the attempt's folder is made), after_launch,
while_running, at_exit (the process has ended, nobody was told), before_record (Prefect was told,
the record was not).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from gpu_flows.dispatch.execution_runner import ExecutionRunner
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.runtimes import process
from gpu_flows.worker.gpu_worker import GpuWorker


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(cls: type, name: str) -> None:
    real: Callable[..., Any] = getattr(cls, name)

    async def dying(*args: Any, **kwargs: Any) -> Any:
        die()
        return await real(*args, **kwargs)

    setattr(cls, name, dying)


def after(cls: type, name: str, delay: float = 0) -> None:
    real: Callable[..., Any] = getattr(cls, name)

    async def dying(*args: Any, **kwargs: Any) -> Any:
        answer = await real(*args, **kwargs)
        if delay:
            asyncio.get_running_loop().call_later(delay, die)
        else:
            die()
        return answer

    setattr(cls, name, dying)


def die_before_launch() -> None:
    def dying(*_: Any, **__: Any) -> None:
        die()

    process.device_environment = dying  # type: ignore[assignment]


POINTS: dict[str, Callable[[], None]] = {
    "before_claim": lambda: before(RunStates, "claim"),
    "after_claim": lambda: after(RunStates, "claim"),
    "before_launch": die_before_launch,
    "after_launch": lambda: after(process.ProcessRuntime, "launch"),
    "while_running": lambda: after(process.ProcessRuntime, "launch", delay=2.0),
    "at_exit": lambda: before(ExecutionRunner, "report_end"),
    "before_record": lambda: after(PrefectGateway, "report_end"),
}


async def main(pool: str, point: str) -> None:
    POINTS[point]()
    await GpuWorker(work_pool_name=pool).start()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

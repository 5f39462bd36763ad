"""A real worker that kills itself when it first reaches a given point.

    python crashing_worker.py POOL POINT

Points: before_claim, after_claim, before_launch (the attempt's folder exists), after_launch, while_running,
at_exit (the attempt has ended, and its end is not reported), before_record (the end is reported to Prefect,
and not recorded).
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


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_before(cls: type, name: str) -> None:
    real: Callable[..., Any] = getattr(cls, name)

    async def crashing(*args: Any, **kwargs: Any) -> Any:
        crash()
        return await real(*args, **kwargs)

    setattr(cls, name, crashing)


def crash_after(cls: type, name: str, delay: float = 0) -> None:
    real: Callable[..., Any] = getattr(cls, name)

    async def crashing(*args: Any, **kwargs: Any) -> Any:
        result = await real(*args, **kwargs)
        if delay:
            asyncio.get_running_loop().call_later(delay, crash)
        else:
            crash()
        return result

    setattr(cls, name, crashing)


def crash_before_launch() -> None:
    def crashing(*_: Any, **__: Any) -> None:
        crash()

    process.device_environment = crashing  # type: ignore[assignment]


POINTS: dict[str, Callable[[], None]] = {
    "before_claim": lambda: crash_before(RunStates, "claim"),
    "after_claim": lambda: crash_after(RunStates, "claim"),
    "before_launch": crash_before_launch,
    "after_launch": lambda: crash_after(process.ProcessRuntime, "launch"),
    "while_running": lambda: crash_after(process.ProcessRuntime, "launch", delay=2.0),
    "at_exit": lambda: crash_before(ExecutionRunner, "report_end"),
    "before_record": lambda: crash_after(PrefectGateway, "report_end"),
}


async def main(pool: str, point: str) -> None:
    POINTS[point]()
    await GpuWorker(work_pool_name=pool).start()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

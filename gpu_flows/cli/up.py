"""`gpu-flows up`: everything on this machine, in one go."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gpu_flows.cli.parts import DEFAULT_POOL, PoolOption, examples
from gpu_flows.cli.prefect_settings import setting
from gpu_flows.cli.problem import BadInput, Problem


@examples(
    "gpu-flows up                              real GPUs if there are any, else 3 nodes with 4 simulated",
    "gpu-flows up --cluster '2x8:A100:80'      a simulated cluster of your own",
    "PREFECT_API_URL=http://host:4200/api gpu-flows up      with a server that runs already",
)
def up(
    pool: PoolOption = DEFAULT_POOL,
    cluster: Annotated[
        str, typer.Option(help="Declare a simulated cluster: NODESxGPUS[:MODEL[:MEM_GB]], joined by +.")
    ] = "",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the server, if one is started.")
    ] = 4200,
) -> None:
    """Start server, pool, blocks, deployments and worker, and keep them until Ctrl-C.

    A Prefect server that your settings name and that answers is used; else one is started here.
    The machine's real GPUs are used when NVML finds some, a simulated cluster otherwise.
    """
    from gpu_flows.devices.nvml import find_nvml
    from gpu_flows.home import home
    from gpu_flows.schedulers.cluster_spec import declare
    from gpu_flows.stack import Stack, StackError, answers

    try:
        declare(cluster) if cluster else None
    except ValueError as error:
        raise BadInput(str(error)) from None
    known = setting("PREFECT_API_URL").rstrip("/")
    running = known if known and answers(known) else ""
    local = f"http://127.0.0.1:{port}/api"
    if not running and answers(local):
        running = local
    stack = Stack(home(), pool=pool, port=port, api_url=running)
    for received in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(received, _interrupt)
    try:
        with stack:
            if not running:
                _say("Starting a Prefect server ...")
                stack.start_server()
            _say(f"Setting up pool {pool!r}, its blocks and the deployments of prefect.yaml ...")
            stack.set_up(cluster)
            stack.deploy()
            _say("Starting the worker ...")
            stack.start_worker()
            _say(_devices_in_words(cluster, find_nvml()))
            _say(f"\nReady. The UI is at {stack.ui_url}\n")
            _say(f"  export PREFECT_API_URL={stack.api_url}")
            _say("  gpu-flows submit --gpus 2 -- python -c 'print(6 * 7)'")
            _say("  gpu-flows queue --all\n\nCtrl-C stops it.")
            _follow(stack.home / "worker.log", stack.worker_alive)
            raise Problem("The worker has ended.", f"See {stack.home / 'worker.log'}.")
    except StackError as error:
        raise Problem(str(error)) from None
    except KeyboardInterrupt:
        stopped = f", and with it {stack.jobs_stopped} running jobs" if stack.jobs_stopped else ""
        _say(f"\nStopped{stopped}.")


def _devices_in_words(cluster: str, why_not_real: str) -> str:
    if cluster:
        return f"Devices: the simulated cluster {cluster}; jobs really run, on this machine's CPU."
    if why_not_real:
        return (
            "Devices: simulated, as the cluster block declares them; jobs really run, on this machine's CPU. "
            f"({why_not_real})"
        )
    return "Devices: this machine's real GPUs, found by NVML. `gpu-flows gpus` lists them."


def _follow(log: Path, alive: Callable[[], bool]) -> None:
    """Pass the worker's lines on until it ends."""
    with log.open() as lines:
        lines.seek(0, 2)
        while alive():
            for line in lines:
                print(line, end="", flush=True)
            time.sleep(0.5)


def _say(text: str) -> None:
    print(text, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt

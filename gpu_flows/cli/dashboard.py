"""`gpu-flows dashboard`: a live page about a pool, on this machine only."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from gpu_flows.cli.charts import require_charts
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.options import DEFAULT_POOL, PoolOption, examples
from gpu_flows.cli.prefect_client import NotFound, PrefectClient
from gpu_flows.cli.prefect_settings import build_run_url
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.worker.status import read_last_status


@examples(
    "gpu-flows dashboard --open",
    "gpu-flows dashboard --pool lab --port 8322",
    "ssh -L 8321:127.0.0.1:8321 gpuserver gpu-flows dashboard      to see it from another machine",
)
def dashboard(
    pool: PoolOption = DEFAULT_POOL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8321,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show a pool live in the browser: queue, reasons, devices, what-if and history, until Ctrl-C.

    The page is served to this machine only (127.0.0.1), shows what the worker here writes, and changes
    nothing. Run it on the machine of the worker. Needs the extra `charts`: pip install 'gpu-flows[charts]'.
    """
    require_charts("The dashboard")
    from gpu_flows.dashboard.server import PortInUse, serve
    from gpu_flows.dashboard.views.look import Settings

    _require_pool(pool)

    def announce(address: str) -> None:
        print(f"The dashboard of pool {pool!r} is at {address} until Ctrl-C.", flush=True)
        if open_it:
            webbrowser.open(address)

    try:
        serve(Settings(pool, find_warehouse(pool), build_run_url), port, announce)
    except PortInUse as error:
        raise CommandError(
            str(error), "Is a dashboard running there already? Or choose another: --port N"
        ) from None


def _require_pool(pool: str) -> None:
    """Raise NotFound if neither this machine nor the server knows the pool. A server may be away."""
    if read_last_status(pool):
        return
    try:
        PrefectClient(timeout_s=3).read_pool(pool)
    except NotFound:
        raise
    except CommandError:
        pass

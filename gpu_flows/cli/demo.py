"""`gpu-flows demo`: real training jobs under two policies in two minutes, on this machine's CPU."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.options import examples
from gpu_flows.cli.output import make_console, make_table, show
from gpu_flows.common.retry import wait_until

if TYPE_CHECKING:
    from rich.console import Console

    from gpu_flows.bootstrap.local_stack import Stack
    from gpu_flows.cli.prefect_client import PrefectClient

CLUSTER = "3x4:GTX 1080 Ti:11"
POOL = "gpu"
MODELS = ("mlp", "cnn", "lstm", "transformer")
SIZES = (1, 2, 4, 1, 3, 2, 1, 4, 2, 1)  # devices of each job, the same under both policies
JOBS_TIMEOUT_S, FACTS_TIMEOUT_S = 600.0, 30.0
COLUMNS = (
    *("policy", "jobs", "makespan_s", "avg_turnaround_s", "avg_queueing_s"),
    *("allocation_percent", "utilization_percent"),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Ten jobs that are submitted under one policy, and their progress bar."""

    runs: list[str]
    bar: Any


@examples(
    "gpu-flows demo           run the demo, print the table, remove everything",
    "gpu-flows demo --keep    keep server and worker, to look around in the Prefect UI",
)
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running until Ctrl-C.")] = False,
) -> None:
    """Run 20 real training jobs on a simulated cluster, and switch the policy halfway.

    A private Prefect server, a work pool and a worker start on this machine. Ten jobs are submitted under
    FIFO. While they run, the scheduler block is switched to Round Robin and ten more jobs are submitted. At
    the end an SQL query compares the policies.
    """
    from gpu_flows.bootstrap.local_stack import Stack, StackError
    from gpu_flows.config import paths

    users_home = paths.home()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    home = Path(tempfile.mkdtemp(prefix="gpu-flows-demo-"))
    console = make_console()
    try:
        with Stack(home, pool=POOL) as stack:
            os.environ.update(stack.environment())
            _start(stack, console)
            _run_both_batches(stack, console)
            show(_draw_comparison(home / "warehouse.duckdb"))
            if keep:
                _keep_running(stack, users_home, console)
            else:
                console.print("\nTo look around in the Prefect UI afterwards: gpu-flows demo --keep")
    except StackError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        console.print("\nStopped; nothing is left running.")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _start(stack: Stack, console: Console) -> None:
    steps = (
        ("Starting a private Prefect server", stack.start_server),
        (f"Creating the pool, its blocks and a simulated cluster ({CLUSTER})", lambda: stack.set_up(CLUSTER)),
        ("Deploying prefect.yaml", stack.deploy),
        ("Starting the worker", stack.start_worker),
    )
    for title, step in steps:
        started = time.monotonic()
        with console.status(f"{title} ..."):
            step()
        console.print(f"{title}: {time.monotonic() - started:.1f} s")
    console.print(f"Prefect UI: {stack.ui_url}\n")


def _run_both_batches(stack: Stack, console: Console) -> None:
    from gpu_flows.cli.prefect_client import PrefectClient

    client = PrefectClient()
    deployment = client.get("/deployments/name/train/train")["id"]
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("{task.fields[states]}"), console=console) as bars:
        batches: list[Batch] = []

        def submit(title: str) -> None:
            runs = _submit(client, deployment, seed=len(batches))
            batches.append(Batch(runs, bars.add_task(title, total=len(runs), states="")))

        submit("10 jobs under FIFO")
        _wait_for_jobs(client, bars, batches, count=6)
        stack.run([sys.executable, "-m", "gpu_flows.cli", "policy", "set", "round_robin"])
        bars.console.print("Switched the scheduler block to Round Robin; nothing was restarted.")
        submit("10 more under Round Robin")
        _wait_for_jobs(client, bars, batches, count=20)


def _submit(client: PrefectClient, deployment: str, seed: int) -> list[str]:
    runs = []
    for number, gpus in enumerate(SIZES):
        config = {
            "model": MODELS[number % len(MODELS)],
            "seconds": 3 + number % 3,
            "epochs": 1000,
            "steps_per_second": 15,
            "seed": seed,
        }
        body = {"parameters": {"config": config}, "job_variables": {"gpus": gpus}, "tags": ["demo"]}
        runs.append(str(client.post(f"/deployments/{deployment}/create_flow_run", body)["id"]))
    return runs


def _wait_for_jobs(client: PrefectClient, bars: Progress, batches: list[Batch], count: int) -> None:
    """Update the progress bars until so many jobs have ended."""

    def enough_ended() -> bool:
        return sum(_update_bar(client, bars, batch) for batch in batches) >= count

    if not wait_until(enough_ended, JOBS_TIMEOUT_S, every_s=0.5):
        raise CommandError(
            f"The jobs have not ended within {JOBS_TIMEOUT_S:.0f} s.", "See worker.log with --keep."
        )


def _update_bar(client: PrefectClient, bars: Progress, batch: Batch) -> int:
    """Show the states of a batch. Returns how many of its jobs have ended."""
    from gpu_flows.prefect_api.conventions import FINAL_STATES

    found = client.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": batch.runs}}})
    states = [run["state"]["type"] for run in found]
    ended = sum(state in FINAL_STATES for state in states)
    failed = ended - states.count("COMPLETED")
    text = f"{states.count('RUNNING')} running, {states.count('SCHEDULED')} waiting"
    bars.update(batch.bar, completed=ended, states=text + (f", {failed} failed" if failed else ""))
    return ended


def _draw_comparison(database: Path) -> Any:
    """A row for each policy, queried once the last fact has been recorded."""
    from gpu_flows.analytics.query_runner import run_query

    def all_recorded() -> bool:
        return bool(run_query(database, "select count(*) from job_ends").rows[0][0] >= 2 * len(SIZES))

    wait_until(all_recorded, FACTS_TIMEOUT_S, every_s=0.5)
    found = run_query(database, "policies", {"pool": POOL})
    rows = [[row[found.columns.index(column)] for column in COLUMNS] for row in found.rows]
    return make_table(COLUMNS, rows, right=COLUMNS[1:])


def _keep_running(stack: Stack, users_home: Path, console: Console) -> None:
    from gpu_flows.config.running_server import announced

    server = stack.describe_server("gpu-flows demo --keep")
    with announced(server, users_home) as found:
        console.print(f"\nThe Prefect UI is at {stack.ui_url}. In another terminal:\n")
        if not found:  # commands find the server of `gpu-flows up`
            console.print(f"  export PREFECT_API_URL={stack.api_url} GPU_FLOWS_HOME={stack.home}")
        console.print("  gpu-flows sql policies\n\nCtrl-C stops and removes everything.")
        while True:
            time.sleep(1)

"""`gpu-flows demo`: the whole product at work in two minutes, on nothing but this machine's CPU."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from gpu_flows.cli.parts import console, examples, show, table
from gpu_flows.cli.problem import Problem

CLUSTER = "3x4:GTX 1080 Ti:11"
POOL = "gpu"
MODELS = ("mlp", "cnn", "lstm", "transformer")
SIZES = (1, 2, 4, 1, 3, 2, 1, 4, 2, 1)  # devices of each job, the same under both policies
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Half:
    """Ten jobs under one policy."""

    policy: str
    runs: list[str]


@examples(
    "gpu-flows demo           run it, see the table, leave nothing behind",
    "gpu-flows demo --keep    and keep server and worker, to look around in the Prefect UI",
)
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running until Ctrl-C.")] = False,
) -> None:
    """Run 20 real training jobs on a simulated cluster, and swap the policy halfway.

    A private Prefect server, a work pool and a worker start on this machine. Ten jobs are
    submitted under FIFO; while they run, the scheduler block is switched to Round Robin and ten
    more come in. At the end SQL tells how each policy did.
    """
    from gpu_flows.bootstrap.local_stack import Stack, StackError

    signal.signal(signal.SIGTERM, _interrupt)
    home = Path(tempfile.mkdtemp(prefix="gpu-flows-demo-"))
    screen = console()
    try:
        with Stack(home, pool=POOL) as stack:
            os.environ.update(stack.environment())
            _bring_up(stack, screen)
            halves = _run_both_halves(stack, screen)
            show(_comparison(home / "warehouse.duckdb", halves))
            if keep:
                _linger(stack, screen)
            else:
                screen.print("\nTo look around in the Prefect UI afterwards: gpu-flows demo --keep")
    except StackError as error:
        raise Problem(str(error)) from None
    except KeyboardInterrupt:
        screen.print("\nStopped; nothing is left running.")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _bring_up(stack: Any, screen: Any) -> None:
    steps = (
        ("Starting a private Prefect server", stack.start_server),
        (f"Making the pool, its blocks and a simulated cluster ({CLUSTER})", lambda: stack.set_up(CLUSTER)),
        ("Deploying prefect.yaml", stack.deploy),
        ("Starting the worker", stack.start_worker),
    )
    for words, step in steps:
        began = time.monotonic()
        with screen.status(f"{words} ..."):
            step()
        screen.print(f"{words}: {time.monotonic() - began:.1f} s")
    screen.print(f"Prefect UI: {stack.ui_url}\n")


def _run_both_halves(stack: Any, screen: Any) -> list[Half]:
    from gpu_flows.cli.server import Server

    server = Server()
    deployment = server.get("/deployments/name/train/train")["id"]
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        console=screen,
    )
    with bars:
        first = Half("fifo", _submit(server, deployment, seed=0))
        lines = [(first, bars.add_task("10 jobs under FIFO", total=10, news=""))]
        _watch(server, bars, lines, until_done=6)
        stack.run([sys.executable, "-m", "gpu_flows.cli", "policy", "set", "round_robin"])
        bars.console.print("Swapped the scheduler block to Round Robin; nothing was restarted.")
        second = Half("round_robin", _submit(server, deployment, seed=1))
        lines.append((second, bars.add_task("10 more under Round Robin", total=10, news="")))
        _watch(server, bars, lines, until_done=20)
    return [first, second]


def _submit(server: Any, deployment: str, seed: int) -> list[str]:
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
        runs.append(str(server.post(f"/deployments/{deployment}/create_flow_run", body)["id"]))
    return runs


def _watch(server: Any, bars: Any, lines: list[tuple[Half, Any]], until_done: int) -> None:
    """Draw how far the jobs are, until so many have ended."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended = 0
        for half, bar in lines:
            wanted = {"flow_runs": {"id": {"any_": half.runs}}}
            states = [run["state"]["type"] for run in server.post("/flow_runs/filter", wanted)]
            done = sum(state in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") for state in states)
            wrong = done - states.count("COMPLETED")
            news = f"{states.count('RUNNING')} running, {states.count('SCHEDULED')} waiting"
            bars.update(bar, completed=done, news=news + (f", {wrong} went wrong" if wrong else ""))
            ended += done
        if ended >= until_done:
            return
        time.sleep(0.5)
    raise Problem(f"The jobs have not ended within {PATIENCE_S:.0f} s.", "See worker.log with --keep.")


def _comparison(database: Path, halves: list[Half]) -> Any:
    """Per policy, read back by SQL once the last fact is in."""
    from gpu_flows.analytics.query_runner import run_query

    expected = sum(len(half.runs) for half in halves)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if run_query(database, "select count(*) from job_ends").rows[0][0] >= expected:
            break
        time.sleep(0.5)
    found = run_query(database, "policies", {"pool": POOL})
    wanted = (
        "policy",
        "jobs",
        "makespan_s",
        "avg_turnaround_s",
        "avg_queueing_s",
        "allocation",
        "utilization",
    )
    at = [found.columns.index(column) for column in wanted]
    rows = [[row[index] for index in at] for row in found.rows]
    for row in rows:
        row[-2] = f"{100 * row[-2]:.0f}%" if row[-2] is not None else None
        row[-1] = f"{row[-1]:.0f}%" if row[-1] is not None else None
    return table(wanted, rows, right=wanted[1:])


def _linger(stack: Any, screen: Any) -> None:
    screen.print(f"\nThe Prefect UI is at {stack.ui_url}. In another terminal:\n")
    screen.print(f"  export PREFECT_API_URL={stack.api_url} GPU_FLOWS_HOME={stack.home}")
    screen.print("  gpu-flows sql policies\n\nCtrl-C stops it and removes everything.")
    while True:
        time.sleep(1)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt

"""From creating a due run to RUNNING: our worker beside Prefect's own, on one server, in one run.

    python benchmarks/latency.py [--runs 20] [--seed 1] [--json FILE]

Three pools with one worker each serve the same flow, deployed in the same way:

    gpu          our worker
    process      the stock process worker, at its default settings
    process 1 s  the stock process worker with PREFECT_WORKER_QUERY_SECONDS=1

They take turns, one run at a time. A random pause before each run spreads the runs over the phases of
the stock worker's poll. A run is timed from before the request that creates it until the timestamp of its
RUNNING state (server, workers and runs share this machine's clock).

Takes about 15 minutes. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import subprocess
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import psutil
from common import Goal, log_progress, make_parser, report, run_benchmark, wait_until
from live_pool import Api, private_stack
from spread_table import print_spreads

from gpu_flows.bootstrap.local_stack import PREFECT, Stack, StackError

FLOW = """
    from prefect import flow

    @flow
    def hello():
        pass
"""
LONGEST_POLL_S = 10.0
BETWEEN_RUNS_S = 1.0  # the process of a finished run needs a moment to exit
WARM_UP = 1  # rounds that are not counted, because the first start writes bytecode


@dataclass(frozen=True)
class Kind:
    """A pool and the worker that serves it."""

    name: str
    pool: str
    poll_s: str = ""  # PREFECT_WORKER_QUERY_SECONDS; empty is the default


OURS = Kind("gpu", "benchmark")
STOCK = Kind("process", "stock")
EAGER = Kind("process 1 s", "stock-eager", poll_s="1")
KINDS = (OURS, STOCK, EAGER)


@dataclass(frozen=True)
class Start:
    """Seconds from the request until the run was claimed, and until it ran."""

    pending: float
    running: float


def main() -> int:
    parser = make_parser(__doc__ or "", runs=20, what="runs of each worker (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the pauses between runs")
    given = parser.parse_args()
    starts = measure(given.runs, random.Random(given.seed))

    print(f"From creating a due run to RUNNING, {given.runs} runs each, in seconds\n")
    running = {kind.name: [start.running for start in starts[kind]] for kind in KINDS}
    claimed = {kind.name: statistics.median(start.pending for start in starts[kind]) for kind in KINDS}
    more = {name: f"    {median:8.2f}" for name, median in claimed.items()}
    print_spreads("worker", running, 14, more, "    claimed after (median)")
    medians = {name: statistics.median(times) for name, times in running.items()}
    goals = [
        Goal(f"{OURS.name} / {other.name}", medians[OURS.name] / medians[other.name], limit)
        for other, limit in ((STOCK, 1 / 3), (EAGER, 2 / 3))
    ]
    details = {kind.name: [asdict(start) for start in starts[kind]] for kind in KINDS}
    return report(goals, {"seconds": details}, given.json)


def measure(runs: int, chance: random.Random) -> dict[Kind, list[Start]]:
    starts: dict[Kind, list[Start]] = {kind: [] for kind in KINDS}
    with private_stack("1x1") as stack, contextlib.ExitStack() as workers:
        api = Api(stack.api_url)
        for kind in (STOCK, EAGER):
            stack.run([*PREFECT, "work-pool", "create", kind.pool, "--type", "process"])
        deployments = deploy(stack, api)
        log_progress("starting the three workers")
        stack.start_worker()
        for kind in (STOCK, EAGER):
            workers.enter_context(stock_worker(stack, api, kind))
        for number in range(1 - WARM_UP, runs + 1):
            for kind in KINDS:
                time.sleep(BETWEEN_RUNS_S + chance.uniform(0, LONGEST_POLL_S))
                start = run_once(api, deployments[kind])
                if number > 0:
                    starts[kind].append(start)
            log_progress(f"round {number} of {runs}" if number > 0 else "warmed up")
    return starts


def deploy(stack: Stack, api: Api) -> dict[Kind, str]:
    """Deploy the same flow to each pool with `prefect deploy`. Returns the ids of the deployments."""
    folder = stack.home / "flows"
    folder.mkdir()
    (folder / "hello.py").write_text(textwrap.dedent(FLOW))
    (folder / "prefect.yaml").write_text(prefect_file(folder))
    stack.run([*PREFECT, "--no-prompt", "deploy", "--all"], folder)
    return {kind: api.get(f"/deployments/name/hello/{kind.pool}")["id"] for kind in KINDS}


def prefect_file(folder: Path) -> str:
    deployments = "".join(
        f"  - name: {kind.pool}\n    entrypoint: hello.py:hello\n    work_pool: {{name: {kind.pool}}}\n"
        for kind in KINDS
    )
    step = f"  - prefect.deployments.steps.set_working_directory: {{directory: '{folder}'}}\n"
    return f"pull:\n{step}deployments:\n{deployments}"


@contextlib.contextmanager
def stock_worker(stack: Stack, api: Api, kind: Kind) -> Iterator[None]:
    """Run Prefect's own worker for the pool, and wait until the server has its heartbeat."""
    command = [*PREFECT, "worker", "start", "--pool", kind.pool, "--type", "process"]
    eager = {"PREFECT_WORKER_QUERY_SECONDS": kind.poll_s} if kind.poll_s else {}
    with (stack.home / f"{kind.pool}.log").open("wb") as log:
        worker = subprocess.Popen(
            command,
            env={**stack.environment(), **eager},
            cwd=stack.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C does not reach it before the others
        )
    try:
        wait_until(
            lambda: bool(api.post(f"/work_pools/{kind.pool}/workers/filter", {})),
            f"the worker of pool {kind.pool!r} has reported",
        )
        yield
    finally:
        stop(worker)


def stop(worker: subprocess.Popen[bytes]) -> None:
    """Stop the worker and the processes that it runs."""
    if worker.poll() is None:
        children = psutil.Process(worker.pid).children(recursive=True)
        worker.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=20)
        for process in (*children, psutil.Process(worker.pid)) if worker.poll() is None else children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        worker.wait()


def run_once(api: Api, deployment: str) -> Start:
    """Create a run that is due, and wait for its end."""
    requested = time.time()
    run = api.post(f"/deployments/{deployment}/create_flow_run", {})["id"]

    def ended() -> bool:
        state = str(api.get(f"/flow_runs/{run}")["state"]["type"])
        if state in ("FAILED", "CRASHED", "CANCELLED"):
            raise StackError(f"A run ended as {state}; nothing can be measured with it.")
        return state == "COMPLETED"

    wait_until(ended, f"run {run} has completed")
    entered: dict[str, float] = {}
    for state in api.get("/flow_run_states/", flow_run_id=run):
        at = datetime.fromisoformat(state["timestamp"]).timestamp() - requested
        entered[state["type"]] = min(at, entered.get(state["type"], at))
    return Start(entered["PENDING"], entered["RUNNING"])


if __name__ == "__main__":
    run_benchmark(main)

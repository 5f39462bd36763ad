"""From creating a due run to RUNNING: our worker beside Prefect's own, on one server, in one run.

    python benchmarks/latency.py [--runs 20] [--seed 1] [--json FILE]

Three pools with one worker each serve the same flow, deployed in the same way:

    gpu          our worker
    process      the stock process worker, at its default settings
    process 1 s  the stock process worker with PREFECT_WORKER_QUERY_SECONDS=1

They take turns, one run at a time. A random pause before each run lets it meet the stock worker's
poll in any phase. The clock runs from before the request that creates the run until the time the
run's RUNNING state carries (server, workers and runs share this machine's clock).

Takes about 15 minutes. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import psutil
from common import SPREAD_HEADING, Goal, Spread, log_progress, make_parser, report, run_benchmark, wait_until
from live_pool import Api, private_stack

from gpu_flows.bootstrap.local_stack import PREFECT, Stack, StackError

FLOW = """
    from prefect import flow

    @flow
    def hello():
        pass
"""
LONGEST_POLL_S = 10.0
BETWEEN_RUNS_S = 1.0  # a finished run's process needs a moment to be gone
WARM_UP = 1  # rounds that are not counted: the first start writes bytecode


@dataclass(frozen=True)
class Kind:
    """A pool and the worker that serves it."""

    name: str
    pool: str
    poll_s: str = ""  # what a stock worker is told; empty leaves it as it comes


OURS = Kind("gpu", "benchmark")
STOCK = Kind("process", "stock")
EAGER = Kind("process 1 s", "stock-eager", poll_s="1")
KINDS = (OURS, STOCK, EAGER)


@dataclass(frozen=True)
class Start:
    """How long after the request a run was claimed, and ran."""

    pending: float
    running: float


def main() -> int:
    parser = make_parser(__doc__ or "", runs=20, what="runs of each worker (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the pauses between runs")
    given = parser.parse_args()
    starts = measure(given.runs, random.Random(given.seed))

    print(f"From creating a due run to RUNNING, {given.runs} runs each, in seconds\n")
    print(f"{'worker':<14}{SPREAD_HEADING}    claimed after (median)")
    running = {kind: Spread.of([start.running for start in starts[kind]]) for kind in KINDS}
    for kind in KINDS:
        claimed = Spread.of([start.pending for start in starts[kind]]).median
        print(f"{kind.name:<14}{running[kind].text()}    {claimed:8.2f}")

    def ratio(kind: Kind) -> float:
        return running[OURS].median / running[kind].median

    goals = [
        Goal(f"{OURS.name} / {STOCK.name}", ratio(STOCK), 1 / 3),
        Goal(f"{OURS.name} / {EAGER.name}", ratio(EAGER), 2 / 3),
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
    """The same flow for each pool, by `prefect deploy`. The deployments' ids."""
    folder = stack.home / "flows"
    folder.mkdir()
    (folder / "hello.py").write_text(textwrap.dedent(FLOW))
    (folder / "prefect.yaml").write_text(prefect_file(folder))
    stack.run([*PREFECT, "--no-prompt", "deploy", "--all"], folder)
    return {kind: api.get(f"/deployments/name/hello/{kind.pool}")["id"] for kind in KINDS}


def prefect_file(folder: Path) -> str:
    each = "".join(
        f"  - name: {kind.pool}\n    entrypoint: hello.py:hello\n    work_pool: {{name: {kind.pool}}}\n"
        for kind in KINDS
    )
    step = f"  - prefect.deployments.steps.set_working_directory: {{directory: '{folder}'}}\n"
    return f"pull:\n{step}deployments:\n{each}"


@contextlib.contextmanager
def stock_worker(stack: Stack, api: Api, kind: Kind) -> Iterator[None]:
    """Prefect's own worker for the pool, from when the server hears of it."""
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
            start_new_session=True,  # a Ctrl-C is ours to pass on, in the right order
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
    """End the worker and whatever it runs."""
    if worker.poll() is None:
        family = psutil.Process(worker.pid).children(recursive=True)
        worker.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=20)
        for process in (*family, psutil.Process(worker.pid)) if worker.poll() is None else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        worker.wait()


def run_once(api: Api, deployment: str) -> Start:
    """Create a run that is due, and see it through to its end."""
    asked = time.time()
    run = api.post(f"/deployments/{deployment}/create_flow_run", {})["id"]

    def ended() -> bool:
        state = str(api.get(f"/flow_runs/{run}")["state"]["type"])
        if state in ("FAILED", "CRASHED", "CANCELLED"):
            raise StackError(f"A run ended as {state}; nothing can be measured with it.")
        return state == "COMPLETED"

    wait_until(ended, f"run {run} has completed")
    entered: dict[str, float] = {}
    for state in api.get("/flow_run_states/", flow_run_id=run):
        at = datetime.fromisoformat(state["timestamp"]).timestamp() - asked
        entered[state["type"]] = min(at, entered.get(state["type"], at))
    return Start(entered["PENDING"], entered["RUNNING"])


if __name__ == "__main__":
    run_benchmark(main)

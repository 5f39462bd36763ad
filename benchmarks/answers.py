"""How quickly `why`, `queue` and `submit --dry-run` answer beside a long queue, and what forecasts cost the
worker.

    python benchmarks/answers.py [--waiting 1000] [--runs 5]

Makes a pool with that many waiting jobs, on files alone: a status, a state, and a worker's socket; a server
answers that it knows nothing. Each command is a process of its own, the first one is not counted. Goals: a
median under 1 s for each command, and under 2 ms of processor time of the worker's event loop per decision;
under half a processor for the child. Exit code 1 if one is missed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
from common import (
    SPREAD_HEADING,
    Goal,
    Spread,
    log_progress,
    make_parser,
    positive_int,
    report,
    run_benchmark,
)

from gpu_flows.config.paths import pool_folder
from gpu_flows.forecasting.child import capture
from gpu_flows.forecasting.forecaster import Forecaster
from gpu_flows.forecasting.imagined import IMAGINED, ImaginedJob
from gpu_flows.forecasting.messages import Settings
from gpu_flows.forecasting.state_file import state_path
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.reasons import class_of
from gpu_flows.worker.command_socket import answer_commands
from gpu_flows.worker.status import Status, write_status

POLICY, CLUSTER, POOL = "srtf", "16x8", "gpu"
DECISIONS = 60


def estimate(job: Job) -> Estimate:
    seconds = job.expected_s or 60.0
    return Estimate(seconds, 1.5 * seconds, "history")


def make_engine(waiting: int) -> Engine:
    """A full cluster with a queue of this length."""
    engine, now = Engine(declare(CLUSTER), make_policy(POLICY), can_preempt=True), time.time()
    devices = len(engine.cluster.devices)
    for number in range(waiting + devices // 2):
        gpus = 1 + number % 4
        job = Job(
            f"{number:08x}-0000-4000-8000-000000000000", now - 3600 + number, gpus, name=f"job-{number}"
        )
        engine.submit(job.expecting(600.0 + 37.0 * (number % 50)))
    engine.tick(now)
    return engine


def write_pool(engine: Engine) -> None:
    now, folder = time.time(), pool_folder(POOL)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [*engine.waiting, *(running.job for running in engine.running.values())]
    durations = {job.id: estimate(job) for job in jobs}
    state = capture(POOL, engine, Settings(POLICY), durations, now)
    state_path(folder).write_bytes(state.to_json())
    waiting = [
        {
            **{name: getattr(job, name) for name in ("id", "name", "user", "gpus", "priority", "submitted")},
            **{
                "waited": now - job.submitted,
                "ran": 0.0,
                "reason": reason.code,
                "class": class_of(reason.code),
            },
            **{"why": reason.summary, "fix": reason.fix, "attempts": 0, "preemptions": 0, "offer": None},
            "eta": {"start_p50": now + 60, "start_p90": now + 90, "end_p50": now + 99, "end_p90": now + 120},
            **{"waits_for": [], "alternatives": []},
        }
        for job, reason in engine.reasons()
    ]
    devices = [asdict(state.device) for state in engine.cluster.devices.values()]
    policy = {"name": POLICY, "options": {}, "serving": POLICY, "error": ""}
    write_status(Status(POOL, "worker", time.time(), policy, waiting, [], devices))


# -- the commands -----------------------------------------------------------------------------


@contextmanager
def serve_nothing() -> Iterator[str]:
    """A server that has one deployment, and no runs."""

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            found: Any = []
            if "deployments/filter" in self.path:
                found = [{"id": "0" * 8, "name": "command", "flow_id": "f", "work_pool_name": POOL}]
            content = json.dumps(found).encode()
            self.send_response(404 if "/flow_runs/0" in self.path else 200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _reply

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api"


def answer_in_thread() -> None:
    """A worker's end of the socket."""

    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        job = Job("imagined", time.time(), 2, name="imagined", expected_s=900.0)
        return {"jobs": IMAGINED.dump_python([ImaginedJob(job, estimate(job))], mode="json")}

    work = answer_commands(pool_folder(POOL), answer, logging.getLogger("answers"))
    threading.Thread(target=asyncio.run, args=(work,), daemon=True).start()


def time_command(engine: Engine, runs: int, *words: str) -> Spread:
    took = []
    for _ in range(runs + 1):
        write_pool(engine)  # a status that is a few seconds old counts as absent
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "gpu_flows.cli", *words], check=True, stdout=subprocess.DEVNULL)
        took.append(time.monotonic() - began)
    return Spread.of(took[1:])


# -- the worker -------------------------------------------------------------------------------


async def measure_worker(waiting: int, folder: Path) -> tuple[Spread, float]:
    """The event loop's processor time per decision in ms, and the part of a processor that the child uses."""
    engine, spent = make_engine(waiting), []
    log = logging.getLogger("benchmark")
    settings = Settings(POLICY)
    forecaster = Forecaster(POOL, folder, engine, estimate, lambda: settings, lambda *_: None, log)
    task = asyncio.ensure_future(forecaster.keep_forecasting())
    while not forecaster.outcome.made:
        await asyncio.sleep(0.1)
    child = next(each for each in psutil.Process().children() if "forecasting" in " ".join(each.cmdline()))
    used, began = sum(child.cpu_times()[:2]), time.monotonic()
    for _ in range(DECISIONS):
        job_id = next(iter(engine.running))
        engine.ended(job_id)
        now = time.time()
        first = time.thread_time()
        forecaster.before_plan(now)
        middle = time.thread_time()
        actions = engine.tick(now)
        last = time.thread_time()
        forecaster.after_plan(POLICY, actions, now, 0.0)
        spent.append((middle - first + time.thread_time() - last) * 1e3)
        await asyncio.sleep(0.25)
    share = (sum(child.cpu_times()[:2]) - used) / (time.monotonic() - began)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return Spread.of(spent), share


def main() -> int:
    parser = make_parser(__doc__ or "", 5, "how often each command is run")
    parser.add_argument("--waiting", type=positive_int, default=1000, metavar="N", help="waiting jobs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu-flows-answers-") as folder, serve_nothing() as url:
        os.environ.update(GPU_FLOWS_HOME=folder, PREFECT_HOME=folder, PREFECT_API_URL=url)
        engine = make_engine(arguments.waiting)
        write_pool(engine)
        answer_in_thread()
        names = [job.name for job in engine.first_waiting()]
        commands = {
            "queue": ("queue",),
            "why, of the first job": ("why", names[0]),
            "why, of the last job": ("why", names[-1]),
            "submit --dry-run": ("submit", "--dry-run", "--gpus", "2", "--", "true"),
        }
        print(f"{'seconds, ' + str(arguments.waiting) + ' jobs wait':<34}{SPREAD_HEADING}")
        found = {}
        for what, words in commands.items():
            log_progress(f"timing gpu-flows {' '.join(words)}")
            found[what] = time_command(engine, arguments.runs, *words)
            print(f"{what:<34}{found[what].text()}", flush=True)
        log_progress("measuring the worker")
        spent, share = asyncio.run(measure_worker(arguments.waiting, Path(folder)))
        print(f"{'ms of the event loop per decision':<34}{spent.text()}")
        goals = [Goal(what, spread.median, 1.0, " s") for what, spread in found.items()]
        goals += [
            Goal("event loop per decision, median", spent.median, 2.0, " ms"),
            Goal("processors that the child uses", share, 0.5),
        ]
        details = {"waiting": arguments.waiting, **{what: asdict(each) for what, each in found.items()}}
        return report(goals, details, arguments.json)


if __name__ == "__main__":
    run_benchmark(main)

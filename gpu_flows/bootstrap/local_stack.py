"""A complete gpu-flows on one machine: Prefect server, pool, blocks, deployments and worker.

`gpu-flows up`, `gpu-flows demo`, the tests and the benchmarks use it. Server and worker are separate
processes, started by `prefect server start` and `prefect worker start`, with their output in log files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import IO, Any

import httpx
import yaml

from gpu_flows.common.retry import wait_until
from gpu_flows.config.paths import END_WITH_WORKER, EXTEND_SERVER
from gpu_flows.config.running_server import RunningServer
from gpu_flows.runtimes.process_identity import kill_all

PREFECT = (sys.executable, "-m", "prefect")
SERVER_TIMEOUT_S = 120.0
WORKER_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 25.0
STOPPED_WITH_STACK = "Stopped, because the gpu-flows that it belonged to (`up` or `demo`) was stopped."


class StackError(RuntimeError):
    """A part of the stack did not start; the message names its log."""


class StackTimeout(StackError):
    """A part of the stack runs, but was not ready in time."""


class Stack:
    """Server and worker of one home folder. As a context manager, it stops both at the end."""

    def __init__(self, home: Path, pool: str = "gpu", port: int = 0, api_url: str = "") -> None:
        self.home, self.pool = home.resolve(), pool
        self.port = port or free_port()
        self.owns_server = not api_url
        self.api_url = api_url or f"http://127.0.0.1:{self.port}/api"
        self.ui_url = self.api_url.removesuffix("/api")
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._log_lock: IO[bytes] | None = None
        self.serves: Callable[[], bool] = lambda: False  # whether the worker acts for the pool, or has
        self._deployed: list[str] = []  # the deployments that the pool had when it was set up
        self.restored_policy = ""  # the policy that `set_up` restored after a benchmark that was killed
        self.jobs_stopped = 0  # how many jobs `close` stopped
        self.home.mkdir(parents=True, exist_ok=True)

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of this stack. A private server does not inherit the user's
        own Prefect settings."""
        settings = {
            "PREFECT_API_URL": self.api_url,
            "GPU_FLOWS_HOME": str(self.home),
            "GPU_FLOWS_POOL": self.pool,
        }
        if not self.owns_server:
            return {**os.environ, **settings}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        private = {
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            END_WITH_WORKER: "1",
            "PREFECT_CLI_PROMPT": "false",
        }
        return {**inherited, **private, **settings}

    # -- start --------------------------------------------------------------------------------

    def start_server(self) -> None:
        command = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self._server = self._start(command, "server.log", {EXTEND_SERVER: "1"})
        self._wait_until_ready(
            lambda: answers(self.api_url),
            self._server,
            SERVER_TIMEOUT_S,
            "The Prefect server does not answer",
            "server.log",
        )

    def set_up(
        self, cluster: str = "", blocks: str = "default", docker: bool = False, hosts: Sequence[str] = ()
    ) -> None:
        """Create the pool and its blocks if they do not exist. A given cluster replaces the nodes.
        Sets `restored_policy` if a benchmark was killed and had left another policy."""
        options = ["--cluster", cluster] if cluster else []
        options += ["--docker"] if docker else []
        options += [argument for host in hosts for argument in ("--docker-host", host)]
        printed = self.run(
            [sys.executable, "-m", "gpu_flows.bootstrap.pool_setup", self.pool, "--blocks", blocks, *options]
        )
        self._note_set_up(json.loads(printed.splitlines()[-1]))

    def _note_set_up(self, found: dict[str, Any]) -> None:
        self.restored_policy, self._deployed = found["restored_policy"], found["deployments"]

    def deploy(self) -> None:
        """Create the deployments of prefect.yaml on the server, for this stack's pool. A schedule that exists
        stays on or off, as someone may have switched it in the UI."""
        path = prefect_file()
        content = yaml.safe_load(path.read_text())
        for deployment in content["deployments"]:
            deployment["work_pool"]["name"] = self.pool
            if deployment["name"] in self._deployed:
                for schedule in deployment.get("schedules", []):
                    schedule.pop("active", None)
        adapted = self.home / "prefect.yaml"
        adapted.write_text(yaml.safe_dump(content))
        self.run([*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file", str(adapted)], path.parent)

    def start_worker(self, name: str = "", **env: str) -> None:
        """Start a worker and wait until it serves the pool, or stands by while another worker serves it."""
        options = ["--name", name] if name else []
        command = [*PREFECT, "worker", "start", "--pool", self.pool, "--type", "gpu", *options]
        self._log_lock = self._log_lock or _lock_log(self.home)
        log = self.worker_log
        start = log.stat().st_size
        self._worker = self._start(command, log.name, env)

        def find(*words: bytes) -> bool:
            output = log.read_bytes()[start:]
            return any(word in output for word in words)

        self._wait_until_ready(
            lambda: find(b"Serving pool", b"standing by"),
            self._worker,
            WORKER_TIMEOUT_S,
            "The worker does not serve the pool",
            log.name,
        )
        self.serves = lambda: find(b"Serving pool")

    @property
    def worker_log(self) -> Path:
        """The log of this stack's worker. A second stack with the same home has a log of its own."""
        return Path(self._log_lock.name) if self._log_lock else self.home / "worker.log"

    # -- stop ---------------------------------------------------------------------------------

    def stop_worker(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the worker. Its jobs continue, and the next worker adopts them."""
        if self._worker:
            _stop(self._worker, how)
            self._worker = None

    def stop_server(self) -> None:
        if self._server:
            _stop(self._server, signal.SIGINT)
            self._server = None

    def stop_jobs(self) -> int:
        """Kill every job that runs under this home. Returns their number."""
        return kill_all(self.home)

    def close(self) -> None:
        self.stop_worker()
        if self.owns_server:  # without the server, jobs cannot report anything
            self.stop_jobs()
            self.jobs_stopped = self._mark_stopped_runs() if self._server else 0
        self.stop_server()
        if self._log_lock:
            self._log_lock.close()
            self._log_lock = None

    def _mark_stopped_runs(self) -> int:
        """Cancel the runs that were stopped with the stack. Otherwise they would stay Running, and the next
        worker would report that they crashed. Returns their number."""
        state = {"type": "CANCELLED", "name": "Cancelled", "message": STOPPED_WITH_STACK}
        try:
            with httpx.Client(base_url=self.api_url, timeout=10) as server:
                which = {
                    "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}},
                    "work_pools": {"name": {"any_": [self.pool]}},
                }
                runs = server.post("/flow_runs/filter", json=which).raise_for_status().json()
                for run in runs:
                    server.post(f"/flow_runs/{run['id']}/set_state", json={"state": state, "force": True})
        except httpx.HTTPError:
            return 0  # the server is gone already
        return len(runs)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe_server(self, command: str) -> RunningServer:
        """Describe the server for the commands of other terminals. The command line starts it again."""
        pid = self._server.pid if self._server else os.getpid()
        return RunningServer.of(self.api_url, self.home, command, pid)

    # -- processes ----------------------------------------------------------------------------

    def worker_alive(self) -> bool:
        return self._worker is not None and self._worker.poll() is None

    def run(self, command: list[str], directory: Path | None = None) -> str:
        """Run a command to its end with the stack's environment, and return its output."""
        done = subprocess.run(
            command, env=self.environment(), cwd=directory, capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise StackError(f"`{' '.join(command[2:5])}` failed: {lines[-1] if lines else done.returncode}")
        return done.stdout

    def _start(
        self, command: list[str], log: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.home / log).open("ab") as output:
            return subprocess.Popen(
                command,
                env={**self.environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # this process passes a Ctrl-C on, in the right order
            )

    def _wait_until_ready(
        self,
        is_ready: Callable[[], bool],
        process: subprocess.Popen[bytes],
        timeout_s: float,
        problem: str,
        log: str,
    ) -> None:
        if not wait_until(lambda: is_ready() or process.poll() is not None, timeout_s):
            raise StackTimeout(f"{problem} after {timeout_s:.0f} s. See {self.home / log}.")
        if process.poll() is not None and not is_ready():
            raise StackError(f"{problem}: its process ended. See {self.home / log}.")


def answers(api_url: str) -> bool:
    """Whether a Prefect server answers at this URL."""
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prefect_file() -> Path:
    """Return the path of prefect.yaml: in the checkout, or else the copy in the package."""
    checkout = Path(str(files("gpu_flows"))).parent / "prefect.yaml"
    return checkout if checkout.exists() else Path(str(files("gpu_flows") / "deployments" / "prefect.yaml"))


def _lock_log(folder: Path) -> IO[bytes]:
    """Open a log that no other stack uses for its worker: `worker.log`, or `worker-2.log` if it is in use."""
    for number in count(1):
        log = (folder / ("worker.log" if number == 1 else f"worker-{number}.log")).open("ab")
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log.close()
            continue
        return log
    raise AssertionError("unreachable")


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

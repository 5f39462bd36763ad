"""A complete gpu-flows on one machine: Prefect server, pool, blocks, deployments and worker.

`gpu-flows up`, `gpu-flows demo`, the tests and the benchmarks use it. Server and worker are separate
processes, started by `prefect server start` and `prefect worker start`, with their output in log files.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from gpu_flows.common.retry import wait_until
from gpu_flows.config.paths import END_WITH_WORKER
from gpu_flows.runtimes.process import kill_all

PREFECT = (sys.executable, "-m", "prefect")
SERVER_TIMEOUT_S = 120.0
WORKER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 25.0


class StackError(RuntimeError):
    """A part of the stack did not start; the message names its log."""


class Stack:
    """Server and worker of one home folder. As a context manager, it stops both at the end."""

    def __init__(self, home: Path, pool: str = "gpu", port: int = 0, api_url: str = "") -> None:
        self.home, self.pool = home.resolve(), pool
        self.port = port or free_port()
        self._own_server = not api_url
        self.api_url = api_url or f"http://127.0.0.1:{self.port}/api"
        self.ui_url = self.api_url.removesuffix("/api")
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
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
        if not self._own_server:
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
        self._server = self._start(command, "server.log")
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
        """Create the pool and its blocks if they do not exist. A given cluster replaces the existing one."""
        options = ["--cluster", cluster] if cluster else []
        options += ["--docker"] if docker else []
        options += [argument for host in hosts for argument in ("--docker-host", host)]
        self.run(
            [sys.executable, "-m", "gpu_flows.bootstrap.pool_setup", self.pool, "--blocks", blocks, *options]
        )

    def deploy(self) -> None:
        """Create the deployments of prefect.yaml on the server, for this stack's pool."""
        path = prefect_file()
        content = yaml.safe_load(path.read_text())
        for deployment in content["deployments"]:
            deployment["work_pool"]["name"] = self.pool
        adapted = self.home / "prefect.yaml"
        adapted.write_text(yaml.safe_dump(content))
        self.run([*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file", str(adapted)], path.parent)

    def start_worker(self, name: str = "", **env: str) -> None:
        """Start a worker and wait until it serves the pool, or stands by while another worker serves it."""
        options = ["--name", name] if name else []
        command = [*PREFECT, "worker", "start", "--pool", self.pool, "--type", "gpu", *options]
        log = self.home / "worker.log"
        start = log.stat().st_size if log.exists() else 0
        self._worker = self._start(command, "worker.log", env)

        def is_serving() -> bool:
            output = log.read_bytes()[start:]
            return b"Serving pool" in output or b"standing by" in output

        self._wait_until_ready(
            is_serving, self._worker, WORKER_TIMEOUT_S, "The worker does not serve the pool", "worker.log"
        )

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
        if self._own_server:
            self.jobs_stopped = self.stop_jobs()  # without the server they cannot report anything
        self.stop_server()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            raise StackError(f"{problem} after {timeout_s:.0f} s. See {self.home / log}.")
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


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

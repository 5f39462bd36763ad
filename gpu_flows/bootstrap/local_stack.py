"""A whole gpu-flows on one machine: Prefect server, pool, blocks, deployments and worker.

`gpu-flows up` and `gpu-flows demo` are this with words around it, and so are the tests and the
benchmarks. Server and worker are the ordinary `prefect server start` and `prefect worker start`,
as processes of their own with their output in files.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from gpu_flows.config.paths import END_WITH_WORKER
from gpu_flows.runtimes.process import kill_all

PREFECT = (sys.executable, "-m", "prefect")
SERVER_PATIENCE_S = 120.0
WORKER_PATIENCE_S = 60.0


class StackError(RuntimeError):
    """A part of the stack did not come up; the message names its log."""


class Stack:
    """Server and worker of one home folder. Use as a context manager: leaving it stops both."""

    def __init__(self, home: Path, pool: str = "gpu", port: int = 0, api_url: str = "") -> None:
        self.home, self.pool = home.resolve(), pool
        self.port = port or free_port()
        self._own_server = not api_url
        self.api_url = api_url or f"http://127.0.0.1:{self.port}/api"
        self.ui_url = self.api_url.removesuffix("/api")
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self.jobs_stopped = 0  # by close
        self.home.mkdir(parents=True, exist_ok=True)

    def environment(self) -> dict[str, str]:
        """What every process of this stack runs with. Prefect's own settings of the person who
        starts it stay out of a private server's way."""
        ours = {
            "PREFECT_API_URL": self.api_url,
            "GPU_FLOWS_HOME": str(self.home),
            "GPU_FLOWS_POOL": self.pool,
        }
        if not self._own_server:
            return {**os.environ, **ours}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        private = {
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            END_WITH_WORKER: "1",
            "PREFECT_CLI_PROMPT": "false",
        }
        return {**inherited, **private, **ours}

    # -- start --------------------------------------------------------------------------------

    def start_server(self) -> None:
        command = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self._server = self._start(command, "server.log")
        self._await(
            self._healthy, self._server, SERVER_PATIENCE_S, "The Prefect server does not answer", "server.log"
        )

    def set_up(
        self, cluster: str = "", blocks: str = "default", docker: bool = False, hosts: Sequence[str] = ()
    ) -> None:
        """The pool and its blocks, unless they are there already. What is said of the cluster replaces it."""
        said = ["--cluster", cluster] if cluster else []
        said += ["--docker"] if docker else []
        said += [word for host in hosts for word in ("--docker-host", host)]
        self.run(
            [sys.executable, "-m", "gpu_flows.bootstrap.pool_setup", self.pool, "--blocks", blocks, *said]
        )

    def deploy(self) -> None:
        """Put the deployments of prefect.yaml on the server, for this stack's pool."""
        path = prefect_file()
        described = yaml.safe_load(path.read_text())
        for deployment in described["deployments"]:
            deployment["work_pool"]["name"] = self.pool
        ours = self.home / "prefect.yaml"
        ours.write_text(yaml.safe_dump(described))
        self.run([*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file", str(ours)], path.parent)

    def start_worker(self, name: str = "", **env: str) -> None:
        """Start a worker and wait until it serves the pool (or stands by, if another one does)."""
        named = ["--name", name] if name else []
        command = [*PREFECT, "worker", "start", "--pool", self.pool, "--type", "gpu", *named]
        log = self.home / "worker.log"
        begin = log.stat().st_size if log.exists() else 0
        self._worker = self._start(command, "worker.log", env)

        def serving() -> bool:
            said = log.read_bytes()[begin:]
            return b"Serving pool" in said or b"standing by" in said

        self._await(serving, self._worker, WORKER_PATIENCE_S, "The worker does not serve", "worker.log")

    # -- stop ---------------------------------------------------------------------------------

    def stop_worker(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Jobs go on running: the next worker adopts them."""
        if self._worker:
            _stop(self._worker, how)
            self._worker = None

    def stop_server(self) -> None:
        if self._server:
            _stop(self._server, signal.SIGINT)
            self._server = None

    def stop_jobs(self) -> int:
        """Kill every job that runs under this home. How many there were."""
        return kill_all(self.home)

    def close(self) -> None:
        self.stop_worker()
        if self._own_server:
            self.jobs_stopped = self.stop_jobs()  # without their server they could report nothing
        self.stop_server()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------

    def worker_alive(self) -> bool:
        return self._worker is not None and self._worker.poll() is None

    def run(self, command: list[str], directory: Path | None = None) -> str:
        """Run a command with the stack's environment to its end, and return what it printed."""
        done = subprocess.run(
            command, env=self.environment(), cwd=directory, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise StackError(f"`{' '.join(command[2:5])}` failed: {said[-1] if said else done.returncode}")
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
                start_new_session=True,  # a Ctrl-C is ours to pass on, in the right order
            )

    def _await(
        self,
        ready: Callable[[], bool],
        process: subprocess.Popen[bytes],
        patience_s: float,
        complaint: str,
        log: str,
    ) -> None:
        deadline = time.monotonic() + patience_s
        while not ready():
            if process.poll() is not None:
                raise StackError(f"{complaint}: it ended at once. See {self.home / log}.")
            if time.monotonic() > deadline:
                raise StackError(f"{complaint} after {patience_s:.0f} s. See {self.home / log}.")
            time.sleep(0.1)

    def _healthy(self) -> bool:
        return answers(self.api_url)


def answers(api_url: str) -> bool:
    """Whether a Prefect server answers there."""
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
    """prefect.yaml: of the checkout this runs from, else the copy in the package."""
    checkout = Path(str(files("gpu_flows"))).parent / "prefect.yaml"
    return checkout if checkout.exists() else Path(str(files("gpu_flows") / "deployments" / "prefect.yaml"))


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(timeout=25)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

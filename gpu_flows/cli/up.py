"""`gpu-flows up`: start everything on this machine, and stop it on Ctrl-C."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import DEFAULT_POOL, PoolOption, examples
from gpu_flows.cli.prefect_settings import read_setting

if TYPE_CHECKING:
    from gpu_flows.bootstrap.local_stack import Stack

TAKEOVER_S = 12.0  # longer than the status of a worker that died seems fresh, and than a try to take over
LEASE_S = 75.0  # longer than the lease of a worker that died


@examples(
    "gpu-flows up                              real GPUs if there are any, else 3 nodes with 4 simulated",
    "gpu-flows up --cluster '2x8:A100:80'      a simulated cluster of your own",
    "gpu-flows up --docker                     jobs in containers too, on this machine's Docker engine",
    "gpu-flows up --docker-host gpu1=ssh://lab@gpu1 --docker-host gpu2=ssh://lab@gpu2",
    "gpu-flows up --docker-host gpu1=tcp://gpu1:2376,tls_directory=/etc/gpu-flows/certs",
    "gpu-flows up --docker-host here=unix:///run/docker.sock,gpus=4      with 4 simulated GPUs",
    "PREFECT_API_URL=http://host:4200/api gpu-flows up      with a server that runs already",
)
def up(
    pool: PoolOption = DEFAULT_POOL,
    cluster: Annotated[
        str,
        typer.Option(
            help="Declare a simulated cluster: NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE], joined by +; or a "
            "YAML file with racks."
        ),
    ] = "",
    docker: Annotated[
        bool, typer.Option("--docker", help="Run jobs that name an image in containers, on this machine.")
    ] = False,
    docker_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ADDRESS[,SETTING=VALUE ...]",
            help="Run them on this Docker host: unix://, ssh://, or tcp:// with TLS. Once for each host.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the server, if one is started.")
    ] = 4200,
) -> None:
    """Start a server, a pool, its blocks, deployments and a worker, and keep them until Ctrl-C.

    If your settings name a Prefect server that answers, it is used; else one is started on this machine.
    The machine's real GPUs are used if NVML finds any, else a simulated cluster.

    Each Docker host is a node with the GPUs that a probe container finds there, or that gpus=N declares;
    further settings are model, memory_gb, rack, links, address, gpu_access, tls_directory and insecure.
    The nodes and hosts given here replace those in the cluster's block, and so apply to the next start too.
    """
    from gpu_flows.bootstrap.local_stack import Stack, StackError
    from gpu_flows.config.paths import home
    from gpu_flows.config.running_server import announced

    hosts = docker_host or []
    _check_cluster(cluster, hosts)
    running = _find_running_server(port)
    stack = Stack(home(), pool=pool, port=port, api_url=running)
    # Also for SIGINT: a shell that starts a command with & makes it ignore that signal.
    for received in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(received, signal.default_int_handler)  # like Ctrl-C
    try:
        with stack:
            block = _start(stack, bool(running), cluster, docker, hosts)
            with announced(stack.describe_server(shlex.join(["gpu-flows", *sys.argv[1:]])), stack.home):
                who_serves = _wait_until_served(stack)
                _print_next_steps(stack, who_serves, runs_containers=block.get("runtime") == "docker")
                _print_log_until_exit(stack.worker_log, stack.worker_alive)
            raise CommandError("The worker has ended.", f"See {stack.worker_log}.")
    except StackError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        count = stack.jobs_stopped
        stopped = f", and with it {count} running job{'s' if count > 1 else ''}" if count else ""
        _print(f"\nStopped{stopped}.")


# -- before the start -------------------------------------------------------------------------


def _check_cluster(cluster: str, hosts: Sequence[str]) -> None:
    """Raise BadInput for what would otherwise keep the worker from starting."""
    from gpu_flows.schedulers.cluster.spec import declare

    try:
        declare(cluster) if cluster else None
    except ValueError as error:
        raise BadInput(str(error)) from None
    if cluster and hosts:
        raise BadInput(
            "--cluster declares nodes, and so does each --docker-host: choose one.",
            "Declare a host's devices with it: --docker-host NAME=ADDRESS,gpus=4,model=V100,memory_gb=16",
        )
    if hosts:
        _check_hosts(hosts)


def _check_hosts(hosts: Sequence[str]) -> None:
    from gpu_flows.blocks import DockerHost, GpuCluster
    from gpu_flows.cli.docker_probe import describe_error

    for host in hosts:
        try:
            DockerHost.of(host)
        except ValueError as error:
            raise BadInput(f"--docker-host {host}: {describe_error(error)}.") from None
    try:
        GpuCluster.of(hosts=hosts)
    except ValueError as error:
        raise BadInput(f"--docker-host: {describe_error(error)}.") from None


def _find_running_server(port: int) -> str:
    """The API address of a server that answers: the configured one, or one on this port."""
    from gpu_flows.bootstrap.local_stack import answers

    addresses = read_setting("PREFECT_API_URL").rstrip("/"), f"http://127.0.0.1:{port}/api"
    return next((address for address in addresses if address and answers(address)), "")


# -- the start --------------------------------------------------------------------------------


def _start(
    stack: Stack, server_runs: bool, cluster: str, docker: bool, hosts: Sequence[str]
) -> dict[str, Any]:
    """Start what is missing, and print each step. Returns the cluster block's data."""
    from gpu_flows.devices.nvml import find_nvml

    if server_runs:
        _print(f"Using the Prefect server at {stack.api_url}.")
    else:
        _print("Starting a Prefect server ...")
        stack.start_server()
    _print(f"Setting up pool {stack.pool!r}, its blocks and the deployments of prefect.yaml ...")
    stack.set_up(cluster, docker=docker, hosts=hosts)
    if stack.restored_policy:
        _print(f"Restored policy {stack.restored_policy!r}, which a killed benchmark had replaced.")
    stack.deploy()
    block = _read_cluster_block(stack.api_url)
    for line in _describe_runtime(block):
        _print(line)
    _print("Starting the worker ...")
    stack.start_worker()
    if not block.get("hosts"):
        _print(_describe_devices(cluster, find_nvml()))
    return block


def _wait_until_served(stack: Stack) -> str:
    """Wait until a worker acts for the pool: this one, or one that did so before. Returns which."""
    from gpu_flows.common.retry import wait_until
    from gpu_flows.worker.status import read_status

    if wait_until(stack.serves, TAKEOVER_S):
        return "Ready."
    stands_by = f"serves pool {stack.pool!r}; the worker of this command stands by to take over."
    if status := read_status(stack.pool):
        return f"Ready. Worker {status.worker!r} {stands_by}"
    _print("Waiting for the lease of a worker that has ended without releasing it ...")
    return "Ready." if wait_until(stack.serves, LEASE_S) else f"A worker on another machine {stands_by}"


def _print_next_steps(stack: Stack, who_serves: str, runs_containers: bool) -> None:
    image = "--image python:3.11-slim " if runs_containers else ""
    _print(f"\n{who_serves} The UI is at {stack.ui_url}. In another terminal:\n")
    _print(f"  gpu-flows submit {image}--gpus 2 -- python -c 'print(6 * 7)'")
    _print("  gpu-flows queue --all\n")
    _print("For Prefect's own commands:\n")
    _print(f"  export PREFECT_API_URL={stack.api_url}\n")
    _print(
        "Ctrl-C stops everything, also running jobs."
        if stack.owns_server
        else "Ctrl-C stops the worker. Running jobs continue, and the next worker takes them over."
    )


def _read_cluster_block(api_url: str) -> dict[str, Any]:
    """The cluster block's data, which may be from an earlier start or an edit in the UI."""
    from gpu_flows.cli.prefect_client import CLUSTER_BLOCK, PrefectClient

    os.environ["PREFECT_API_URL"] = api_url
    try:
        document = PrefectClient(timeout_s=10).read_block(CLUSTER_BLOCK, "default")
    except CommandError:
        return {}
    return dict(document["data"]) if document else {}


def _describe_runtime(block: dict[str, Any]) -> Iterator[str]:
    if block.get("runtime") != "docker":
        yield "Runtime: processes on this machine."
        return
    from gpu_flows.blocks import GpuCluster
    from gpu_flows.cli.docker_probe import describe_host, probe_hosts

    cluster = GpuCluster(**{key: value for key, value in block.items() if key != "block_type_slug"})
    where = f"on {len(cluster.hosts)} hosts" if cluster.hosts else "on this machine's engine"
    yield f"Runtime: Docker, {where}, for jobs that name an image."
    for probed in probe_hosts(cluster.docker_hosts):
        settings = probed.host.settings
        gpus = f"{settings.gpus} declared GPUs" if settings.gpus else "the GPUs that a probe finds there"
        gpus = f", {gpus}" if cluster.hosts else ""
        engine = f"Docker {probed.version}" if probed.version else f"DOES NOT ANSWER ({probed.error})"
        yield f"  {describe_host(settings)}: {engine}{gpus}"
        if probed.error:
            yield "    It is used as soon as it answers; `gpu-flows doctor` shows what to do."


def _describe_devices(cluster: str, why_not_real: str) -> str:
    if cluster:
        return f"Devices: the simulated cluster {cluster}; jobs really run, on this machine's CPU."
    if why_not_real:
        return (
            "Devices: simulated, as the cluster block declares them; jobs really run, on this machine's CPU. "
            f"If it has GPUs: {why_not_real}"
        )
    return "Devices: this machine's real GPUs, found by NVML. `gpu-flows gpus` lists them."


def _print_log_until_exit(log: Path, is_alive: Callable[[], bool]) -> None:
    """Print the new lines of the worker's log until the worker ends."""
    with log.open() as lines:
        lines.seek(0, 2)
        while is_alive():
            for line in lines:
                _print(escape(line.rstrip("\n")))
            time.sleep(0.5)


def _print(text: str) -> None:
    print(text, flush=True)

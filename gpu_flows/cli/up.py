"""`gpu-flows up`: everything on this machine, in one go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_flows.cli.parts import DEFAULT_POOL, PoolOption, examples
from gpu_flows.cli.prefect_settings import setting
from gpu_flows.cli.problem import BadInput, Problem


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
        str, typer.Option(help="Declare a simulated cluster: NODESxGPUS[:MODEL[:MEM_GB]], joined by +.")
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
    """Start server, pool, blocks, deployments and worker, and keep them until Ctrl-C.

    A Prefect server that your settings name and that answers is used; else one is started here.
    The machine's real GPUs are used when NVML finds some, a simulated cluster otherwise.

    With Docker hosts, each is a node with the GPUs that a probe container finds there, or that gpus=N
    declares; further settings are model, memory_gb, rack, gpu_access, tls_directory and insecure. What is
    said of the cluster is kept in the block, and counts for the next time too.
    """
    from gpu_flows.bootstrap.local_stack import Stack, StackError, answers
    from gpu_flows.config.paths import home
    from gpu_flows.devices.nvml import find_nvml
    from gpu_flows.schedulers.cluster.spec import declare

    try:
        declare(cluster) if cluster else None
    except ValueError as error:
        raise BadInput(str(error)) from None
    hosts = docker_host or []
    if cluster and hosts:
        raise BadInput(
            "--cluster declares nodes, and so does each --docker-host: choose one.",
            "Declare a host's devices with it: --docker-host NAME=ADDRESS,gpus=4,model=V100,memory_gb=16",
        )
    _check_hosts(hosts)
    known = setting("PREFECT_API_URL").rstrip("/")
    running = known if known and answers(known) else ""
    local = f"http://127.0.0.1:{port}/api"
    if not running and answers(local):
        running = local
    stack = Stack(home(), pool=pool, port=port, api_url=running)
    for received in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(received, _interrupt)
    try:
        with stack:
            if not running:
                _say("Starting a Prefect server ...")
                stack.start_server()
            _say(f"Setting up pool {pool!r}, its blocks and the deployments of prefect.yaml ...")
            stack.set_up(cluster, docker=docker, hosts=hosts)
            stack.deploy()
            said = _cluster_block(stack.api_url)
            for line in _runtime_in_words(said):
                _say(line)
            _say("Starting the worker ...")
            stack.start_worker()
            if not said.get("hosts"):
                _say(_devices_in_words(cluster, find_nvml()))
            _say(f"\nReady. The UI is at {stack.ui_url}\n")
            _say(f"  export PREFECT_API_URL={stack.api_url}")
            image = "--image python:3.11-slim " if said.get("runtime") == "docker" else ""
            _say(f"  gpu-flows submit {image}--gpus 2 -- python -c 'print(6 * 7)'")
            _say("  gpu-flows queue --all\n\nCtrl-C stops it.")
            _follow(stack.home / "worker.log", stack.worker_alive)
            raise Problem("The worker has ended.", f"See {stack.home / 'worker.log'}.")
    except StackError as error:
        raise Problem(str(error)) from None
    except KeyboardInterrupt:
        stopped = f", and with it {stack.jobs_stopped} running jobs" if stack.jobs_stopped else ""
        _say(f"\nStopped{stopped}.")


def _check_hosts(hosts: Sequence[str]) -> None:
    """What makes no sense is told now, not by a worker that does not start."""
    if not hosts:
        return
    from gpu_flows.blocks import DockerHost, GpuCluster
    from gpu_flows.cli.checks_docker import told

    for host in hosts:
        try:
            DockerHost.of(host)
        except ValueError as error:
            raise BadInput(f"--docker-host {host}: {told(error)}.") from None
    try:
        GpuCluster.of(hosts=hosts)
    except ValueError as error:
        raise BadInput(f"--docker-host: {told(error)}.") from None


def _cluster_block(api_url: str) -> dict[str, Any]:
    """What the pool's cluster block says, whoever wrote it."""
    from gpu_flows.cli.server import CLUSTER, Server

    os.environ["PREFECT_API_URL"] = api_url
    try:
        found = Server(timeout_s=10).block(CLUSTER, "default")
    except Problem:
        return {}
    return dict(found["data"]) if found else {}


def _runtime_in_words(said: dict[str, Any]) -> Iterator[str]:
    if said.get("runtime") != "docker":
        yield "Runtime: processes of this machine."
        return
    from gpu_flows.blocks import GpuCluster
    from gpu_flows.cli.checks_docker import look_at, place

    cluster = GpuCluster(**{key: value for key, value in said.items() if key != "block_type_slug"})
    whose = f"on {len(cluster.hosts)} hosts" if cluster.hosts else "on this machine's engine"
    yield f"Runtime: Docker, {whose}, for jobs that name an image."
    for seen in look_at(cluster.docker_hosts):
        settings = seen.host.settings
        gpus = f"{settings.gpus} declared GPUs" if settings.gpus else "the GPUs that are found there"
        gpus = f", {gpus}" if cluster.hosts else ""
        how = f"Docker {seen.version}" if seen.version else f"DOES NOT ANSWER ({seen.trouble})"
        yield f"  {place(settings)}: {how}{gpus}"
        if seen.trouble:
            yield "    It is used as soon as it answers; `gpu-flows doctor` tells what to do."


def _devices_in_words(cluster: str, why_not_real: str) -> str:
    if cluster:
        return f"Devices: the simulated cluster {cluster}; jobs really run, on this machine's CPU."
    if why_not_real:
        return (
            "Devices: simulated, as the cluster block declares them; jobs really run, on this machine's CPU. "
            f"({why_not_real})"
        )
    return "Devices: this machine's real GPUs, found by NVML. `gpu-flows gpus` lists them."


def _follow(log: Path, alive: Callable[[], bool]) -> None:
    """Pass the worker's lines on until it ends."""
    with log.open() as lines:
        lines.seek(0, 2)
        while alive():
            for line in lines:
                print(line, end="", flush=True)
            time.sleep(0.5)


def _say(text: str) -> None:
    print(text, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt

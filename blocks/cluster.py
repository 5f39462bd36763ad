"""The GPU Cluster block: the nodes and devices of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, model_validator

from gpu_flows.blocks.base import PoolForm
from gpu_flows.blocks.docker import LOCAL, ContainerRules, DockerHost
from gpu_flows.common.forms import StrictForm
from gpu_flows.common.urls import documentation_url
from gpu_flows.schedulers.cluster.device_links import parse_links
from gpu_flows.schedulers.cluster.spec import NodeGroup, build_nodes, parse_spec
from gpu_flows.schedulers.model import DEFAULT_RACK, Node
from gpu_flows.schedulers.network.tables import REALISTIC


class DeclaredNodes(StrictForm):
    """Nodes of one kind."""

    count: int = Field(default=1, ge=1, le=10_000, title="Nodes")
    """How many such nodes there are."""

    gpus: int = Field(default=4, ge=1, le=64)
    """Devices in each node."""

    model: str = Field(default="GTX 1080 Ti", title="GPU model")
    """The model name of the devices."""

    memory_gb: float = Field(default=11, gt=0, le=4096, title="GPU memory (GB)")
    """Memory of each device."""

    rack: str = DEFAULT_RACK
    """The rack of the nodes, for placement by topology."""

    rack_size: int = Field(default=0, ge=0)
    """Nodes to a rack, if they fill several; 0 if they share one."""

    links: str = ""
    """Which devices of a node are linked: nvlink, switch or numa with the size of the groups, such as
    'nvlink:2, numa:4'. Empty if all are linked alike."""

    @model_validator(mode="after")
    def _check_links(self) -> DeclaredNodes:
        parse_links(self.links, self.gpus)
        return self

    @classmethod
    def of(cls, kind: NodeGroup) -> DeclaredNodes:
        """Return the form of a parsed kind of node."""
        return cls(
            count=kind.nodes,
            gpus=kind.gpus,
            model=kind.model,
            memory_gb=kind.memory_mb / 1024,
            rack=kind.rack,
            rack_size=kind.rack_size,
            links=kind.links,
        )

    def kind(self) -> NodeGroup:
        """Return the kind of node that the form describes."""
        memory_mb = round(1024 * self.memory_gb)
        return NodeGroup(
            self.count, self.gpus, self.model, memory_mb, self.rack_size, self.rack, links=self.links
        )


class GpuCluster(PoolForm, Block):
    """
    The devices of a pool, and what runs jobs on them. Devices are the machine's real GPUs, or a declared
    cluster on which jobs really run, on the CPU. Jobs run as processes on the worker's machine, or in
    containers on one or many Docker hosts. A saved change takes effect while jobs run.

    Example:
        Declare a cluster of two nodes with eight devices each:
        ```python
        from gpu_flows.blocks import GpuCluster

        GpuCluster.of("2x8:A100:80").save("BLOCK_NAME", overwrite=True)
        cluster = GpuCluster.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "GPU Cluster"
    _block_type_slug = "gpu-cluster"
    _block_schema_capabilities = ["gpu-inventory"]
    _documentation_url = HttpUrl(documentation_url("blocks"))

    devices: Literal["auto", "real", "declared"] = "auto"
    """Where devices come from: 'real' uses the GPUs that NVML finds, 'declared' the nodes below, 'auto' is
    real where NVML finds GPUs and declared otherwise."""

    real_gpus: list[str] = Field(default_factory=list, title="Real GPUs")
    """Use only these real GPUs of the worker's machine, by index or UUID, to divide them among pools. Empty
    uses all that no other pool has."""

    rack: str = Field(default=DEFAULT_RACK, title="Rack of the real GPUs")
    """The rack of the worker's machine, for its real GPUs."""

    nodes: list[DeclaredNodes] = Field(default=[DeclaredNodes(count=3)], title="Declared nodes")
    """The nodes of a declared cluster, by kind."""

    runtime: Literal["process", "docker"] = "process"
    """'process' runs jobs as processes on the worker's machine. 'docker' runs jobs that name an image in
    containers: on the Docker hosts below, or on this machine's engine if none is listed."""

    hosts: list[DockerHost] = Field(default_factory=list, title="Docker hosts")
    """Machines with a Docker engine. Each is a node, with the devices it has or declares."""

    containers: ContainerRules = Field(default_factory=ContainerRules)
    """What jobs in containers may request."""

    network: str = Field(default=REALISTIC, title="Network table", min_length=1)
    """What policies that weigh the network are told of it: 'realistic', 'dally', or the path of a YAML file
    with your own figures on the worker's machine."""

    drained: list[str] = Field(default_factory=list, title="Drained nodes")
    """Names of nodes on which no job starts, for example before maintenance. Running jobs go on."""

    idle_percent: float = Field(default=5, ge=0, le=100, title="Idle below (% utilization)")
    """A device that a job holds counts as idle while its utilization is below this."""

    idle_minutes: float = Field(default=30, ge=0, title="Idle after (minutes)")
    """After so long, the event gpu-flows.device.idle is sent, for automations. 0 sends none."""

    @model_validator(mode="after")
    def _check_hosts(self) -> GpuCluster:
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise ValueError("two Docker hosts have the same name")
        if self.hosts and self.runtime == "process":
            raise ValueError("Docker hosts are listed, but the runtime is 'process'; choose 'docker'")
        return self

    @property
    def docker_hosts(self) -> list[DockerHost]:
        """The engines that run containers. If none is listed, this machine's own engine serves every node."""
        return self.hosts or ([DockerHost(name=LOCAL)] if self.runtime == "docker" else [])

    @classmethod
    def of(cls, spec: str = "", docker: bool = False, hosts: Sequence[str] = ()) -> GpuCluster:
        """Parse `NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE]`, several joined by `+`, or a YAML file of racks.
        `docker` uses this machine's engine; `hosts` are in the form that `DockerHost.of` parses."""
        fields: dict[str, Any] = {"runtime": "docker"} if docker or hosts else {}
        if spec:
            fields |= {"devices": "declared", "nodes": [DeclaredNodes.of(kind) for kind in parse_spec(spec)]}
        return cls(**fields, hosts=[DockerHost.of(host) for host in hosts])

    def declared_nodes(self) -> list[Node]:
        """Return the nodes of the declared cluster."""
        return build_nodes(nodes.kind() for nodes in self.nodes)

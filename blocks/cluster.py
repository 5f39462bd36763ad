"""The GPU Cluster block: which nodes and devices a pool has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect.blocks.core import Block
from pydantic import BaseModel, Field, model_validator

from gpu_flows.blocks.docker import LOCAL, ContainerRules, DockerHost
from gpu_flows.schedulers.cluster.spec import DEFAULT_RACK, NodeGroup, build_nodes, parse_spec
from gpu_flows.schedulers.model import Node


class DeclaredNodes(BaseModel):
    """Nodes of one kind."""

    count: int = Field(
        default=1, ge=1, le=10_000, title="Nodes", description="How many such nodes there are."
    )
    gpus: int = Field(default=4, ge=1, le=64, title="GPUs", description="Devices in each node.")
    model: str = Field(default="GTX 1080 Ti", title="GPU model", description="What the devices are called.")
    memory_gb: float = Field(
        default=11, gt=0, le=4096, title="GPU memory (GB)", description="Memory of each device."
    )
    rack: str = Field(
        default=DEFAULT_RACK, title="Rack", description="The rack they stand in, for placement by topology."
    )
    rack_size: int = Field(
        default=0, ge=0, title="Rack size", description="Nodes to a rack, if they fill several; 0 if one."
    )

    @classmethod
    def of(cls, kind: NodeGroup) -> DeclaredNodes:
        return cls(
            count=kind.nodes,
            gpus=kind.gpus,
            model=kind.model,
            memory_gb=kind.memory_mb / 1024,
            rack=kind.rack,
            rack_size=kind.rack_size,
        )

    def kind(self) -> NodeGroup:
        memory_mb = round(1024 * self.memory_gb)
        return NodeGroup(self.count, self.gpus, self.model, memory_mb, self.rack_size, self.rack)


class GpuCluster(Block):
    """
    The devices of a pool, and what runs jobs on them: the machine's real GPUs, or a declared cluster on
    which jobs really run, on the CPU; as processes of the worker's machine, or in containers on one or
    many Docker hosts. A saved change is followed while jobs run.

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

    devices: Literal["auto", "real", "declared"] = Field(
        default="auto",
        title="Devices",
        description=(
            "Where devices come from: 'real' asks NVML, 'declared' takes the nodes below, "
            "'auto' is real where NVML finds GPUs and declared otherwise."
        ),
    )
    nodes: list[DeclaredNodes] = Field(
        default=[DeclaredNodes(count=3)],
        title="Declared nodes",
        description="The nodes of a declared cluster, kind by kind.",
    )

    runtime: Literal["process", "docker"] = Field(
        default="process",
        title="Runtime",
        description=(
            "'process' runs jobs as processes of the worker's machine. 'docker' runs those that name an "
            "image in containers: on the Docker hosts below, or on this machine's engine if none is listed."
        ),
    )
    hosts: list[DockerHost] = Field(
        default_factory=list,
        title="Docker hosts",
        description="Machines with a Docker engine. Each is a node, with the devices it has or declares.",
    )
    containers: ContainerRules = Field(
        default_factory=ContainerRules,
        title="Containers",
        description="What jobs in containers may ask for.",
    )

    @model_validator(mode="after")
    def _hosts_have_names_of_their_own(self) -> GpuCluster:
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise ValueError("two Docker hosts have the same name")
        if self.hosts and self.runtime == "process":
            raise ValueError("Docker hosts are listed, but the runtime is 'process'; choose 'docker'")
        return self

    @property
    def docker_hosts(self) -> list[DockerHost]:
        """The engines that run containers. One that is not listed stands for this machine's own, which
        serves every node."""
        return self.hosts or ([DockerHost(name=LOCAL)] if self.runtime == "docker" else [])

    @classmethod
    def of(cls, spec: str = "", docker: bool = False, hosts: Sequence[str] = ()) -> GpuCluster:
        """From `NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE]`, several joined by `+`, or a YAML file of racks;
        with Docker on this machine, or on hosts written as `DockerHost.of` reads them."""
        given: dict[str, Any] = {"runtime": "docker"} if docker or hosts else {}
        if spec:
            given |= {"devices": "declared", "nodes": [DeclaredNodes.of(kind) for kind in parse_spec(spec)]}
        return cls(**given, hosts=[DockerHost.of(host) for host in hosts])

    def declared_nodes(self) -> list[Node]:
        return build_nodes(nodes.kind() for nodes in self.nodes)

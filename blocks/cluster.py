"""The GPU Cluster block: which nodes and devices a pool has."""

from __future__ import annotations

from typing import Literal

from prefect.blocks.core import Block
from pydantic import BaseModel, Field

from gpu_flows.schedulers.cluster_spec import Kind, build, parse
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


class GpuCluster(Block):
    """
    The devices of a pool: the machine's real GPUs, or a declared cluster on which jobs really run,
    on the CPU of the worker's machine. A saved change is followed while jobs run.

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

    @classmethod
    def of(cls, spec: str) -> GpuCluster:
        """From `NODESxGPUS[:MODEL[:MEM_GB]]`, several joined by `+`."""
        nodes = [
            DeclaredNodes(count=kind.nodes, gpus=kind.gpus, model=kind.model, memory_gb=kind.memory_mb / 1024)
            for kind in parse(spec)
        ]
        return cls(devices="declared", nodes=nodes)

    def declared_nodes(self) -> list[Node]:
        return build(
            Kind(kind.count, kind.gpus, kind.model, round(1024 * kind.memory_gb)) for kind in self.nodes
        )

"""The Prefect blocks that configure a pool, which people edit in the UI: scheduler, cluster (with its Docker
hosts) and warehouse.

A block only describes. Not here: the code that reads blocks and follows their changes (config), runtimes.
"""

if __name__ == "blocks":
    raise ImportError("import gpu_flows.blocks, not blocks")

from gpu_flows.blocks.cluster import GpuCluster as GpuCluster
from gpu_flows.blocks.docker import ContainerRules as ContainerRules
from gpu_flows.blocks.docker import DockerHost as DockerHost
from gpu_flows.blocks.scheduler import GpuScheduler as GpuScheduler
from gpu_flows.blocks.warehouse import Warehouse as Warehouse

"""The hardware of a training: each process uses one CUDA device, or the CPU.

`gpu_flows.training.launch` starts one process per device, and DistributedDataParallel averages their
gradients. Simulated devices train on the CPU in the same way.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass

import torch
from torch import nn

from gpu_flows.checkpoints.process_group import ProcessGroup


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device of this process, the group of processes it belongs to, and a description for the log."""

    device: torch.device
    processes: ProcessGroup
    note: str

    def distribute(self, network: nn.Module) -> nn.Module:
        """Return the network, ready to be called with this process's part of a batch."""
        if self.processes.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network)

    def peak_memory_mb(self) -> float:
        """Return the peak memory so far: of torch on a GPU, of the whole process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def find_hardware() -> Hardware:
    """Return the hardware of this process. In one of several, init_process_group must have been called."""
    processes = ProcessGroup()
    several = f" in {processes.size} processes, one per device" if processes.size > 1 else ""
    if not torch.cuda.is_available():
        note = f"training on the CPU{several}: torch finds no CUDA device"
        return Hardware(torch.device("cpu"), processes, note)
    device = torch.device("cuda", local_rank())
    return Hardware(device, processes, f"training on {torch.cuda.get_device_name(device)}{several}")


def local_rank() -> int:
    """Return the number of this process on its machine, as torchrun counts."""
    return int(os.environ.get("LOCAL_RANK", "0"))

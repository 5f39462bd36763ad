"""Where a training runs: each process on one device, or on the CPU in its place.

Several processes, one per device, are started by `gpu_flows.training.launch`; DistributedDataParallel
then gives all of them the mean of their gradients. Simulated devices train on the CPU in the same way.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass

import torch
from torch import nn

from gpu_flows.checkpoints.peers import Peers


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device of this process, the processes it trains with, and a line that says so."""

    device: torch.device
    peers: Peers
    note: str

    def spread(self, network: nn.Module) -> nn.Module:
        """The network, ready to be called with this process's part of a batch."""
        if self.peers.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network)

    def peak_memory_mb(self) -> float:
        """The most memory held so far: torch's own on a GPU, or the whole process's on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def find_hardware() -> Hardware:
    """What this process can reach. One of several has met the others before."""
    peers = Peers()
    several = f" in {peers.size} processes, one per device" if peers.size > 1 else ""
    if not torch.cuda.is_available():
        note = f"training on the CPU{several}: torch finds no CUDA device"
        return Hardware(torch.device("cpu"), peers, note)
    device = torch.device("cuda", local_rank())
    return Hardware(device, peers, f"training on {torch.cuda.get_device_name(device)}{several}")


def local_rank() -> int:
    """Which of the processes on this machine this is, as torchrun numbers them."""
    return int(os.environ.get("LOCAL_RANK", "0"))

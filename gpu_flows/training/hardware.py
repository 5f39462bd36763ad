"""The hardware of a training: each process uses one CUDA device, or the CPU.

`gpu_flows.training.launch` starts one process per device, and DistributedDataParallel averages their
gradients. Simulated devices train on the CPU in the same way.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.process_group import ProcessGroup
from gpu_flows.runtimes.entry import MEMORY_FRACTION
from gpu_flows.schedulers.prediction.gpu_models import find_context_mib


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

    def report_peak(self) -> None:
        """Report the most GPU memory that this process has used, for predictions: what torch has held, and
        the CUDA context, which torch does not count. On a CPU there is none."""
        directory = os.environ.get(contract.DIRECTORY)
        if directory and self.device.type == "cuda":
            context = find_context_mib(torch.cuda.get_device_name(self.device)) * 2**20
            used = torch.cuda.max_memory_reserved(self.device) + context
            entry = contract.Entry("memory", contract.attempt_number(), time.time(), bytes=used)
            with contextlib.suppress(OSError):  # a full disk must not end a training
                contract.write_entry(Path(directory), entry)


def find_hardware() -> Hardware:
    """Return the hardware of this process. In one of several, init_process_group must have been called."""
    processes = ProcessGroup()
    several = f" in {processes.size} processes, one per device" if processes.size > 1 else ""
    if not torch.cuda.is_available():
        note = f"training on the CPU{several}: torch finds no CUDA device"
        return Hardware(torch.device("cpu"), processes, note)
    device = torch.device("cuda", local_rank())
    limit_memory(device)
    return Hardware(device, processes, f"training on {torch.cuda.get_device_name(device)}{several}")


def limit_memory(device: torch.device) -> None:
    """Hold torch to the job's share of the device, if it shares the device with other jobs."""
    fraction = float(os.environ.get(MEMORY_FRACTION) or 0)
    if 0 < fraction < 1:
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def local_rank() -> int:
    """Return the number of this process on its machine, as torchrun counts."""
    return int(os.environ.get("LOCAL_RANK", "0"))

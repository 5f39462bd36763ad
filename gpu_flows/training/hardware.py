"""Where a training runs: on the devices it was given, or on the CPU in their place.

With CUDA and several devices, `nn.DataParallel` splits each batch over them. Without CUDA the job
may hold simulated devices: then each batch is cut into as many parts, one after the other, and the
gradients are summed. That is the arithmetic of data parallelism, with none of its speed.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device to put tensors on, how many devices share a batch, and a line that says so."""

    device: torch.device
    count: int
    note: str

    @property
    def parts(self) -> int:
        """Into how many parts the training loop itself cuts a batch."""
        return 1 if self.device.type == "cuda" else self.count

    def spread(self, network: nn.Module) -> nn.Module:
        """The network, ready to be called with batches on this hardware."""
        network = network.to(self.device)
        if self.device.type == "cuda" and self.count > 1:
            return nn.DataParallel(network, device_ids=list(range(self.count)))
        return network

    def peak_memory_mb(self) -> float:
        """The most memory held so far: torch's own on all GPUs, or the whole process's on a CPU."""
        if self.device.type == "cuda":
            return sum(torch.cuda.max_memory_allocated(index) for index in range(self.count)) / 2**20
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def find_hardware(environment: Mapping[str, str] = os.environ) -> Hardware:
    """The assigned devices as far as torch can reach them."""
    assigned = assigned_devices(environment)
    if not torch.cuda.is_available():
        note = "training on the CPU: torch finds no CUDA device"
        if assigned > 1:
            note += f"; each batch is cut into {assigned} parts, one per assigned device"
        return Hardware(torch.device("cpu"), assigned, note)

    count = min(assigned, torch.cuda.device_count())
    note = f"training on {count} x {torch.cuda.get_device_name(0)}"
    if count > 1:
        note += ", batches split by nn.DataParallel"
    if count < assigned:
        note += f"; {assigned} devices are assigned but torch sees only {count}"
    return Hardware(torch.device("cuda", 0), count, note)


def assigned_devices(environment: Mapping[str, str]) -> int:
    """How many devices the worker gave this job; 1 for a training started by hand."""
    try:
        devices = json.loads(environment.get("GPU_FLOWS_DEVICES", "[]"))
        return len(devices) or int(environment.get("GPU_FLOWS_GPUS", "1")) or 1
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"GPU_FLOWS_DEVICES or GPU_FLOWS_GPUS is not what the worker writes ({error}). Unset both."
        ) from None

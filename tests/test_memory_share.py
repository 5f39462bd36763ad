"""A job on a shared device is told its share of the memory, and torch is held to it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.process_group import ProcessGroup
from gpu_flows.flows.command import _own_allocator_options
from gpu_flows.runtimes import entry
from gpu_flows.runtimes.base import Launch, device_environment
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.training import hardware

DEVICES = (Device("GPU-a", "node", 0, "T4", 16_000), Device("GPU-b", "node", 1, "A100", 40_000))


def environment(share_mb: int) -> dict[str, str]:
    launch = Launch(Job("a", gpus=2), 1, "pool", "fifo", 0.0, DEVICES, ("true",), memory_share_mb=share_mb)
    return device_environment(launch)


def test_a_share_is_given_only_of_devices_that_are_shared() -> None:
    shared = environment(4000)
    assert (shared["GPU_FLOWS_GPU_MEMORY_MB"], shared["GPU_FLOWS_GPU_MEMORY_FRACTION"]) == ("4000", "0.2434")
    assert shared["GPU_FLOWS_GPU_MEMORY_FRACTION"] == f"{(4000 - 105) / 16_000:.4f}"  # without the context
    assert not {name for share in (0, 16_000) for name in environment(share) if "MEMORY" in name}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.25"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:native,per_process_memory_fraction:0.25"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.1"},
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.1"},
        ),
    ],
)
def test_the_allocator_of_a_flow_gets_the_share(before: dict[str, str], after: dict[str, str]) -> None:
    variables = {**before, "GPU_FLOWS_GPU_MEMORY_FRACTION": "0.25"}
    entry.limit_torch_memory(variables)
    assert {name: value for name, value in variables.items() if "ALLOC" in name} == after


def test_an_older_torch_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: older)
    variables = {"GPU_FLOWS_GPU_MEMORY_FRACTION": "0.25"}
    entry.limit_torch_memory(variables)
    assert len(variables) == 1


def test_a_command_gets_the_options_of_its_owner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_FLOWS_GPU_MEMORY_FRACTION", "0.25")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    entry.limit_torch_memory(os.environ)
    assert "fraction" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    assert _own_allocator_options() == {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}


@pytest.mark.parametrize(("share", "fractions"), [("0.25", [0.25]), ("", []), ("1.0", [])])
def test_a_training_sets_its_fraction_of_the_device(
    monkeypatch: pytest.MonkeyPatch, share: str, fractions: list[float]
) -> None:
    limits: list[float] = []
    monkeypatch.setenv("GPU_FLOWS_GPU_MEMORY_FRACTION", share)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: limits.append(fraction)
    )
    hardware.find_hardware()
    assert limits == fractions


def test_a_training_reports_the_most_memory_that_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for device in ("cuda", "cpu"):  # memory of a CPU is not what predictions are about
        hardware.Hardware(torch.device(device), ProcessGroup(), "").report_peak()
    assert [(entry.event, entry.bytes) for entry in contract.read_journal(tmp_path)] == [
        ("memory", 3 * 2**30 + 105 * 2**20)  # with the CUDA context, which a share of a device includes
    ]

"""Facts of GPU models, and how a model is found by its name."""

from __future__ import annotations

import math

import pytest

from gpu_flows.schedulers.prediction.gpu_models import (
    GPU_MODELS,
    MIB,
    UnknownGpuModel,
    find_chip,
    find_gpu_model,
    find_variants,
)
from gpu_flows.schedulers.prediction.gpu_speeds import change_by_table


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("rtx3060", "RTX 3060"),
        ("3060ti", "RTX 3060 Ti"),
        ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti"),
        ("GTX1080Ti", "GTX 1080 Ti"),
        ("a100-80", "A100 80GB"),
        ("A100_80G", "A100 80GB"),
        ("v100 32 GB", "V100 32GB"),
        ("rtx-4070-ti", "RTX 4070 Ti"),
        ("A10", "A10"),
        ("L4", "L4"),
        ("l40s", "L40S"),
        ("A6000", "RTX A6000"),
    ],
)
def test_a_model_is_found_by_a_part_of_its_name(written: str, name: str) -> None:
    assert find_gpu_model(written).name == name


def test_every_model_is_found_by_its_own_name() -> None:
    for model in GPU_MODELS:
        assert find_gpu_model(model.name) is model


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownGpuModel, match="RTX 4090"):
        find_gpu_model("abacus")


def test_a_name_that_stands_for_several_models() -> None:
    assert [model.name for model in find_variants("A100")] == ["A100 40GB", "A100 80GB"]
    assert [model.name for model in find_variants("a100-80")] == ["A100 80GB"]
    with pytest.raises(UnknownGpuModel, match=r"several: RTX 2070 Super, .*RTX 4090"):
        find_gpu_model("RTX")
    with pytest.raises(UnknownGpuModel, match="Did you mean RTX 6000 Ada"):
        find_gpu_model("RTX 6000")
    with pytest.raises(UnknownGpuModel, match="is not known"):
        find_gpu_model("A100 64GB")


def test_workspace_of_cublas_depends_on_the_architecture() -> None:
    assert find_gpu_model("H100").cublas_workspace_bytes == 32 * MIB
    assert find_gpu_model("A100").cublas_workspace_bytes == 8 * MIB + 128 * 1024


def test_a_chip_has_one_name_whatever_its_memory() -> None:
    assert find_chip("Tesla V100-SXM2-32GB") == find_chip("v100") == "v100"
    assert find_chip("NVIDIA A100 80GB PCIe") == find_chip("A100") == "a100"
    assert find_chip("RTX 3060 Ti") == "rtx 3060 ti"
    assert find_chip(" My GPU") == "my gpu"


def test_measured_speeds_are_found_by_the_same_names() -> None:
    assert change_by_table("resnet-50", "Tesla V100-SXM2-16GB", "K80") == pytest.approx(math.log(5.47))
    assert change_by_table("resnet-50", "P1000", "K80") is None

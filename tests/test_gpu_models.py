"""Facts of GPU models, and how a model is found by its name."""

from __future__ import annotations

import pytest

from gpu_flows.schedulers.prediction.gpu_models import (
    GPU_MODELS,
    MIB,
    UnknownGpuModel,
    find_gpu_model,
    find_variants,
)


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

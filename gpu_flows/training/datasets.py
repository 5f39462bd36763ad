"""The datasets there are. A model has one of its own; another of the same shape can take its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_flows.training.registry import register_dataset

if TYPE_CHECKING:
    from torch import Tensor


@register_dataset("spirals")
def spirals(samples: int) -> tuple[Tensor, Tensor]:
    """Points on three interleaved spirals."""
    from gpu_flows.training import data

    return data.spirals(samples)


@register_dataset("digits")
def digits(samples: int) -> tuple[Tensor, Tensor]:
    """Noisy pictures of rendered digits, each somewhere else."""
    from gpu_flows.training import data

    return data.digits(samples)


@register_dataset("sentences")
def sentences(samples: int) -> tuple[Tensor, Tensor]:
    """Letters of simple generated sentences."""
    from gpu_flows.training import data

    return data.sentences(samples)


@register_dataset("waves")
def waves(samples: int) -> tuple[Tensor, Tensor]:
    """Two waves added up, with some noise."""
    from gpu_flows.training import data

    return data.waves(samples)

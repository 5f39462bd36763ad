"""The datasets that ship with gpu-flows. They are generated, so nothing is downloaded.

Each function returns (inputs, targets) with one row per sample. All random numbers come from torch's default
generator, so a seed determines the data. A model has a dataset of its own; another one with rows of the same
shape can replace it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpu_flows.training.registry import register_dataset

if TYPE_CHECKING:
    from torch import Tensor

SPIRAL_ARMS = 3


@register_dataset("spirals")
def spirals(samples: int) -> tuple[Tensor, Tensor]:
    """Points on three interleaved spirals."""
    import torch

    arms = torch.randint(SPIRAL_ARMS, (samples,))
    radius = torch.rand(samples)
    angle = 4.0 * radius + arms * (2 * math.pi / SPIRAL_ARMS) + 0.2 * torch.randn(samples)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arms


IMAGE_SIDE = 16

# A seven-segment display: the position of each segment, and which segments each digit lights.
_SEGMENTS = {
    "top": (slice(2, 4), slice(5, 11)),
    "upper right": (slice(2, 8), slice(9, 11)),
    "lower right": (slice(8, 14), slice(9, 11)),
    "bottom": (slice(12, 14), slice(5, 11)),
    "lower left": (slice(8, 14), slice(5, 7)),
    "upper left": (slice(2, 8), slice(5, 7)),
    "middle": (slice(7, 9), slice(5, 11)),
}
_LIT_SEGMENTS = (
    *("1111110", "0110000", "1101101", "1111001", "0110011"),
    *("1011011", "1011111", "1110000", "1111111", "1111011"),
)


@register_dataset("digits")
def digits(samples: int) -> tuple[Tensor, Tensor]:
    """Noisy images of rendered digits at varying positions."""
    import torch

    glyphs = torch.zeros(10, IMAGE_SIDE, IMAGE_SIDE)
    for digit, lit in enumerate(_LIT_SEGMENTS):
        for (rows, columns), on in zip(_SEGMENTS.values(), lit, strict=True):
            if on == "1":
                glyphs[digit, rows, columns] = 1.0

    labels = torch.randint(10, (samples,))
    pixels = torch.arange(IMAGE_SIDE)
    shifted_rows = (pixels + torch.randint(-2, 3, (samples, 1))).clamp(0, IMAGE_SIDE - 1)
    shifted_columns = (pixels + torch.randint(-4, 5, (samples, 1))).clamp(0, IMAGE_SIDE - 1)
    images = glyphs[labels[:, None, None], shifted_rows[:, :, None], shifted_columns[:, None, :]]
    brightness = 0.5 + 0.5 * torch.rand(samples, 1, 1)
    noisy = images * brightness + 0.2 * torch.randn(samples, IMAGE_SIDE, IMAGE_SIDE)
    return noisy[:, None], labels


ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
CONTEXT = 16

_ADJECTIVES = ("small", "quiet", "golden", "patient", "heavy", "curious", "distant", "bright")
_NOUNS = ("robot", "teacher", "river", "painter", "machine", "garden", "captain", "signal")
_VERBS = ("follows", "finds", "repairs", "forgets", "measures", "carries", "answers", "trains")


@register_dataset("sentences")
def sentences(samples: int) -> tuple[Tensor, Tensor]:
    """Letters of simple generated sentences."""
    import torch

    def sentence(choice: list[int]) -> str:
        a, b, c, d, e = choice
        return f"the {_ADJECTIVES[a]} {_NOUNS[b]} {_VERBS[c]} the {_ADJECTIVES[d]} {_NOUNS[e]}. "

    text = "".join(sentence(choice) for choice in torch.randint(8, (500, 5)).tolist())
    letters = torch.tensor([ALPHABET.index(letter) for letter in text])
    starts = torch.randint(len(text) - CONTEXT, (samples, 1))
    windows = letters[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


@register_dataset("waves")
def waves(samples: int) -> tuple[Tensor, Tensor]:
    """Sums of two waves with some noise."""
    import torch

    length = 24
    time = torch.arange(length + 1)
    wave = 0.05 * torch.randn(samples, length + 1)
    for _ in range(2):
        speed = 0.2 + 0.6 * torch.rand(samples, 1)
        phase = 2 * math.pi * torch.rand(samples, 1)
        wave = wave + torch.sin(speed * time + phase)
    return wave[:, :-1, None], wave[:, 1:, None]


@register_dataset("products")
def products(samples: int) -> tuple[Tensor, Tensor]:
    """Vectors, and their products with a hidden matrix."""
    import torch

    width = 64
    vectors = torch.randn(samples, width)
    return vectors, vectors @ torch.randn(width, width) / math.sqrt(width)


TABLE_CLASSES = 3


@register_dataset("tables")
def tables(samples: int) -> tuple[Tensor, Tensor]:
    """Rows of numbers in three classes, by thresholds of some columns."""
    import torch

    rows = torch.randn(samples, 8)
    above = (rows[:, 0] > 0).long() + (rows[:, 1] * rows[:, 2].sign() > 0.3).long()
    return rows + 0.1 * torch.randn(samples, 8), above

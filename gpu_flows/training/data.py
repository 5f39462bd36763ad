"""Examples to learn from, made on the spot: nothing is downloaded.

Everything is drawn from torch's default generator, so a seed fixes it. Each function answers with
(inputs, targets), one row per sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SPIRAL_ARMS = 3


def spirals(samples: int) -> tuple[Tensor, Tensor]:
    """Points on interleaved spirals, and the arm each one belongs to."""
    arms = torch.randint(SPIRAL_ARMS, (samples,))
    radius = torch.rand(samples)
    angle = 4.0 * radius + arms * (2 * math.pi / SPIRAL_ARMS) + 0.2 * torch.randn(samples)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arms


IMAGE_SIDE = 16

# A seven-segment display: where each segment lies, and which ones a digit lights.
_SEGMENTS = {
    "top": (slice(2, 4), slice(5, 11)),
    "upper right": (slice(2, 8), slice(9, 11)),
    "lower right": (slice(8, 14), slice(9, 11)),
    "bottom": (slice(12, 14), slice(5, 11)),
    "lower left": (slice(8, 14), slice(5, 7)),
    "upper left": (slice(2, 8), slice(5, 7)),
    "middle": (slice(7, 9), slice(5, 11)),
}
_LIT = (
    *("1111110", "0110000", "1101101", "1111001", "0110011"),
    *("1011011", "1011111", "1110000", "1111111", "1111011"),
)


def digits(samples: int) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of digits, each somewhere else and lit differently, and which digit it is."""
    glyphs = torch.zeros(10, IMAGE_SIDE, IMAGE_SIDE)
    for digit, lit in enumerate(_LIT):
        for (rows, columns), on in zip(_SEGMENTS.values(), lit, strict=True):
            if on == "1":
                glyphs[digit, rows, columns] = 1.0

    labels = torch.randint(10, (samples,))
    along = torch.arange(IMAGE_SIDE)
    rows_moved = (along + torch.randint(-2, 3, (samples, 1))).clamp(0, IMAGE_SIDE - 1)
    columns_moved = (along + torch.randint(-4, 5, (samples, 1))).clamp(0, IMAGE_SIDE - 1)
    images = glyphs[labels[:, None, None], rows_moved[:, :, None], columns_moved[:, None, :]]
    brightness = 0.5 + 0.5 * torch.rand(samples, 1, 1)
    noisy = images * brightness + 0.2 * torch.randn(samples, IMAGE_SIDE, IMAGE_SIDE)
    return noisy[:, None], labels


ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
CONTEXT = 16

_WHAT = ("small", "quiet", "golden", "patient", "heavy", "curious", "distant", "bright")
_WHO = ("robot", "teacher", "river", "painter", "machine", "garden", "captain", "signal")
_DOES = ("follows", "finds", "repairs", "forgets", "measures", "carries", "answers", "trains")


def sentences(samples: int) -> tuple[Tensor, Tensor]:
    """Windows of letters cut from simple sentences, and the letter that follows each of them."""

    def sentence(choice: list[int]) -> str:
        a, b, c, d, e = choice
        return f"the {_WHAT[a]} {_WHO[b]} {_DOES[c]} the {_WHAT[d]} {_WHO[e]}. "

    text = "".join(sentence(choice) for choice in torch.randint(8, (500, 5)).tolist())
    letters = torch.tensor([ALPHABET.index(letter) for letter in text])
    starts = torch.randint(len(text) - CONTEXT, (samples, 1))
    windows = letters[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


def waves(samples: int, length: int = 24) -> tuple[Tensor, Tensor]:
    """The past of two waves added up with some noise, and the value that follows each moment."""
    time = torch.arange(length + 1)
    wave = 0.05 * torch.randn(samples, length + 1)
    for _ in range(2):
        speed = 0.2 + 0.6 * torch.rand(samples, 1)
        phase = 2 * math.pi * torch.rand(samples, 1)
        wave = wave + torch.sin(speed * time + phase)
    return wave[:, :-1, None], wave[:, 1:, None]

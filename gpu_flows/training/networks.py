"""Networks of the shipped models that are more than a stack of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to their input."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        # Group norm instead of batch norm: batch norm averages over the part of the batch that a process
        # sees, so the result would depend on the number of processes.
        self.change = nn.Sequential(
            nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(4, after),
            nn.ReLU(),
            nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False),
            nn.GroupNorm(4, after),
        )
        same_shape = before == after and stride == 1
        self.shortcut = (
            nn.Identity()
            if same_shape
            else nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)
        )

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(self.shortcut(image) + self.change(image))


def residual_network(channels: int, classes: int) -> nn.Module:
    """Return the network of He et al. (2015) for small images: three stages, each with twice the channels and
    half the image size of the one before."""
    return nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(4, channels),
        nn.ReLU(),
        ResidualBlock(channels, channels),
        ResidualBlock(channels, 2 * channels, stride=2),
        ResidualBlock(2 * channels, 4 * channels, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * channels, classes),
    )


class LanguageModel(nn.Module):
    """Two transformer layers with a causal mask."""

    future: Tensor
    positions: Tensor

    def __init__(self, letters: int, context: int, width: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.position = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, letters)
        # Buffers move to the device together with the network.
        self.register_buffer("positions", torch.arange(context))
        self.register_buffer("future", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.letter(letters) + self.position(self.positions)
        scores: Tensor = self.head(self.layers(hidden, mask=self.future, is_causal=True))
        return scores


def next_letter_loss(scores: Tensor, letters: Tensor) -> Tensor:
    """Return the cross entropy over all positions of all sentences."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), letters.flatten())


class Forecaster(nn.Module):
    """An LSTM that predicts the next value after each value of a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory = nn.LSTM(input_size=1, hidden_size=width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, past: Tensor) -> Tensor:
        # Not every CPU supports a 16-bit LSTM, so on a CPU it keeps the precision of its weights.
        mixed = past.is_cuda and torch.is_autocast_enabled("cuda")
        with torch.autocast(past.device.type, enabled=mixed):
            hidden, _ = self.memory(past)
        forecast: Tensor = self.head(hidden)
        return forecast


class SoftTrees(nn.Module):
    """Decision trees whose splits are probabilities, so that gradients reach them; their scores add up.

    All nodes on a level of a tree share a split, as in CatBoost: a tree of depth 3 has 3 splits and 8 leaves.
    """

    sides: Tensor

    def __init__(self, columns: int, trees: int, classes: int, depth: int = 3) -> None:
        super().__init__()
        self.shape = (trees, depth)
        self.splits = nn.Linear(columns, trees * depth)
        self.leaves = nn.Parameter(0.1 * torch.randn(trees, 2**depth, classes))
        # Which side of each split a leaf is on: one row per leaf.
        self.register_buffer("sides", torch.arange(2**depth)[:, None] >> torch.arange(depth) & 1)

    def forward(self, rows: Tensor) -> Tensor:
        right = torch.sigmoid(4 * self.splits(rows)).view(len(rows), *self.shape)[:, :, None]
        reached = torch.where(self.sides == 1, right, 1 - right).prod(dim=-1)
        return torch.einsum("rtl,tlc->rc", reached, self.leaves)

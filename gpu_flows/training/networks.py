"""The networks that are more than a stack of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LanguageModel(nn.Module):
    """Two transformer layers that see only what came before."""

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
        # Buffers follow the network from device to device.
        self.register_buffer("positions", torch.arange(context))
        self.register_buffer("future", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.letter(letters) + self.position(self.positions)
        scores: Tensor = self.head(self.layers(hidden, mask=self.future, is_causal=True))
        return scores


def next_letter_loss(scores: Tensor, letters: Tensor) -> Tensor:
    """Cross entropy over every place of every sentence."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), letters.flatten())


class Forecaster(nn.Module):
    """An LSTM that says the next value after each value it has seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory = nn.LSTM(input_size=1, hidden_size=width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, past: Tensor) -> Tensor:
        hidden, _ = self.memory(past)
        forecast: Tensor = self.head(hidden)
        return forecast

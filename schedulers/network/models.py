"""What training a model sends and computes in one iteration, and which model the kind of a job names.

The gradients of an iteration are sent in several messages, such as one for each layer or each bucket of
layers. Those of the last layers are ready first, so sending them overlaps with computing the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """One iteration of training on one device."""

    name: str
    gradient_bytes: float
    messages: int
    compute_s: float
    overlap: float  # the part of the computing time in which messages can be sent
    source: str = ""


@dataclass(frozen=True)
class Models:
    """Models by the names that the kinds of jobs may contain."""

    models: Mapping[str, TrainedModel]  # by name
    names: Mapping[str, str]  # as a kind may contain it, without separators -> name of the model
    default: str  # the model of kinds that name none

    def find(self, kind: str) -> TrainedModel:
        """Return the model that the kind names, or the default."""
        return self.models[self._find_name(kind) or self.default]

    def is_known(self, kind: str) -> bool:
        return bool(self._find_name(kind))

    def _find_name(self, kind: str) -> str:
        """Return the name of the model. Case, separators and what is in brackets do not matter; of several
        names that the kind contains, the longest counts."""
        plain = simplify(kind)
        return next((name for name, pattern in self._patterns if pattern.search(plain)), "")

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        return [(self.names[written], _whole_numbers(written)) for written in sorted(self.names, key=_length)]


def _length(written: str) -> tuple[int, str]:
    return -len(written), written


def _whole_numbers(written: str) -> re.Pattern[str]:
    """Match a name unless it begins or ends inside a number: `7b` is not in `17b`, nor `vgg1` in `vgg16`."""
    before = r"(?<![\d.])" if written[0].isdigit() else ""
    after = r"(?!\d)" if written[-1].isdigit() else ""
    return re.compile(before + re.escape(written) + after)


def simplify(kind: str) -> str:
    """Return the kind in lower case, without brackets and separators: `ResNet-50 (batch size 64)` is
    `resnet50`. A separator between two numbers stays, because `llama-2-7b` is not `llama27b`."""
    words = re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\(.*?\)", "", kind.lower()))
    return re.sub(r"(?<!\d)-|-(?!\d)", "", words)

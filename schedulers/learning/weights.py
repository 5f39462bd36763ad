"""The file of a trained network: arrays in numpy's npz format, read without pickle, and a header.

The header is JSON, kept as an array of bytes beside the others. It says with which features, placements,
command and seed the network was trained, and which values the features had then.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from gpu_flows.common.files import write_atomically
from gpu_flows.schedulers.learning.features import NAMES, Floats
from gpu_flows.schedulers.learning.network import Network
from gpu_flows.schedulers.placement.options import PLACEMENTS

VERSION = 1  # of the file and of the meaning of the features
SLACK = 1.0  # how far a feature may be outside the trained range
MOST_BYTES = 10_000_000


class WeightsError(ValueError):
    """The file does not hold weights that this version can use; the message says why."""


@dataclass(frozen=True)
class Header:
    """How the network was made, and where it may be used."""

    command: str
    """The command that trained it."""
    seed: int
    steps: int
    """Decisions in training."""
    reward: str
    placements: tuple[str, ...]
    """The placements between which it chooses."""
    low: tuple[float, ...]
    """The lowest value that each feature had in training."""
    high: tuple[float, ...]
    features: tuple[str, ...] = NAMES
    version: int = VERSION


@dataclass(frozen=True)
class Weights:
    """A network and its header."""

    header: Header
    network: Network

    def find_strange(self, rows: Floats) -> str:
        """Return the name of a feature that is outside what the network was trained on; empty if none is."""
        if not len(rows):
            return ""
        low = np.asarray(self.header.low, np.float32) - SLACK
        high = np.asarray(self.header.high, np.float32) + SLACK
        # A few odd jobs are no reason to distrust the order of the others.
        outside = ((rows < low) | (rows > high)).mean(axis=0)
        worst = int(outside.argmax())
        return NAMES[worst] if outside[worst] > 0.1 else ""


def save(weights: Weights, path: Path) -> None:
    """Write the file. The same weights give the same bytes."""
    header = np.frombuffer(json.dumps(asdict(weights.header), sort_keys=True).encode(), np.uint8)
    buffer = BytesIO()
    np.savez(buffer, header=header, **weights.network._asdict())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


def load(path: Path) -> Weights:
    """Read the file, or raise a WeightsError. Anybody may type its path into a form, so it may be a device or
    a pipe, which would never end."""
    try:
        path = path.expanduser()
        if path.exists() and not (path.is_file() and path.stat().st_size <= MOST_BYTES):
            raise WeightsError(f"Weights {path} are not a file of at most {MOST_BYTES // 1_000_000} MB.")
        content = path.read_bytes()
    except WeightsError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise WeightsError(f"Weights {path} cannot be read: {why}.") from None
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Weights:
    """Parse the content of a file of this name, or raise a WeightsError."""
    try:
        with np.load(BytesIO(content), allow_pickle=False) as arrays:
            found: dict[str, Any] = json.loads(arrays["header"].tobytes())
            network = Network(**{field: arrays[field].astype(np.float32) for field in Network._fields})
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
        }
        header = Header(**values)
        _check(header, network, name)
    except WeightsError:
        raise
    except Exception:  # a file may hold anything
        raise WeightsError(f"Weights {name} are not a file of `gpu-flows rl train`.") from None
    return Weights(header, network)


def _check(header: Header, network: Network, name: str) -> None:
    if header.version != VERSION or header.features != NAMES:
        raise WeightsError(f"Weights {name} are of another version of gpu-flows. Train them again.")
    if not header.placements or not set(header.placements) <= PLACEMENTS.keys():
        raise WeightsError(f"Weights {name} choose between placements that there are not.")
    inputs, outputs = len(NAMES), 1 + len(header.placements)
    hidden = network.w1.shape[-1]
    shapes = {
        "w1": (inputs, hidden),
        "b1": (hidden,),
        "w2": (hidden, hidden),
        "b2": (hidden,),
        "w3": (hidden, outputs),
        "b3": (outputs,),
        "skip": (inputs, outputs),
        "margin": (1,),
    }
    for field, shape in shapes.items():
        array = getattr(network, field)
        if array.shape != shape or not np.isfinite(array).all():
            raise WeightsError(f"Weights {name} do not fit: {field} must be finite numbers of shape {shape}.")
    ranges = np.asarray((header.low, header.high), float)
    if ranges.shape != (2, inputs) or not np.isfinite(ranges).all():
        raise WeightsError(f"Weights {name} do not state the range of each feature.")


@cache
def pretrained() -> Weights:
    """Return the weights that ship with the package."""
    return parse(files(__package__).joinpath("pretrained.npz").read_bytes(), "of the package")

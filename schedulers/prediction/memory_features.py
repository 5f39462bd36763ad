"""Predicts a training job's peak GPU memory from features that its owner can declare.

The prediction is a sum of what a device holds, times a learned correction:

    context of the GPU model + a * parameters + optimizer state + b(family) * activations + c * input

The correction is the mean of a Gaussian process over the logarithms of the features. It goes to 1 far from
every job that was measured, where only the sum remains. The upper bound is the prediction times a ratio that
few jobs exceeded whose network was left out of the fit. There is such a ratio for each kind of ignorance:
about the family, the activations, or the GPU model.

This module evaluates a fitted model, whose JSON holds numbers only. `gpu_flows.prediction.memory_fitting`
fits one, with scikit-learn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.prediction.gpu_models import GpuModel

Vector = NDArray[np.float64]

# How many numbers an optimizer keeps for each parameter, with torch's defaults.
STATE_PER_PARAMETER = {
    "sgd": 0,
    "momentum": 1,
    "nesterov": 1,
    "adagrad": 1,
    "asgd": 1,
    "lion": 1,
    "rmsprop": 1,
    "adadelta": 2,
    "adam": 2,
    "adamax": 2,
    "adamw": 2,
    "lamb": 2,
    "nadam": 2,
    "radam": 2,
    "rprop": 2,
    "sparseadam": 2,
    "adafactor": 0.1,
    "amsgrad": 3,
}
UNKNOWN_OPTIMIZER = 2  # as Adam: most optimizers keep no more
NEAR = 0.02  # beside the nearest measured job; networks of one family are at least that near to each other
FAR_MARGIN = math.log(1.25)


class GpuTraits(NamedTuple):
    """What of a GPU model matters here."""

    name: str
    bandwidth_gb_s: float
    cuda_cores: float
    sms: float

    @classmethod
    def of(cls, model: GpuModel) -> GpuTraits:
        """`V100 16GB` and `V100 32GB` are one, V100: how much memory there is does not matter."""
        name = re.sub(r" \d+GB$", "", model.name)
        return cls(name, model.bandwidth_gb_s, model.cuda_cores, model.sms)


@dataclass(frozen=True, slots=True)
class MemoryFeatures:
    """What is declared of a training job. Only the parameters are needed; sizes are in MiB."""

    parameters_mib: float  # all weights once, in the precision in which they are kept
    activations_mib: float | None = None  # the outputs of all layers, for a whole batch
    batch: float | None = None
    input_mib: float | None = None  # of a whole batch
    optimizer: str = ""
    family: str = ""  # such as resnet
    gpu: GpuTraits | None = None

    def __post_init__(self) -> None:
        for name in ("parameters_mib", "activations_mib", "batch", "input_mib"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be above 0, not {value:g}.")
        if self.activations_mib is None and self.batch is None:
            raise ValueError("A prediction needs the activations, or at least the batch size.")

    @property
    def family_key(self) -> str:
        """`ResNet-50`, `resnet_50` and `resnet` are one family."""
        return re.sub(r"[\d\W_]+.*$", "", self.family.strip().lower())

    @property
    def optimizer_state_mib(self) -> float:
        state = STATE_PER_PARAMETER.get(_to_key(self.optimizer), UNKNOWN_OPTIMIZER)
        return self.parameters_mib * state


def is_known_optimizer(name: str) -> bool:
    return _to_key(name) in STATE_PER_PARAMETER


def _to_key(optimizer: str) -> str:
    return re.sub(r"\W+", "", optimizer.lower())


@dataclass(frozen=True, slots=True)
class ActivationSizes:
    """Typical sizes of a family's activations, for jobs that do not declare them."""

    per_sample_mib: float
    per_input: float  # activations divided by input


@dataclass(frozen=True, slots=True)
class Correction:
    """The mean of a Gaussian process with a squared exponential kernel: the logarithm of a ratio."""

    center: Sequence[float]
    scale: Sequence[float]  # of each coordinate; lengths of the kernel included
    variance: float
    points: Sequence[Sequence[float]]  # measured jobs, centered and scaled
    weights: Sequence[float]
    lowest: float
    highest: float

    def evaluate(self, coordinates: Vector) -> tuple[float, float]:
        """Return the correction, and how near the nearest measured job is: from 0 (far) to 1."""
        if not len(self.points):
            return 0.0, 0.0
        scaled = (coordinates - np.asarray(self.center)) / np.asarray(self.scale)
        distances = ((np.asarray(self.points) - scaled) ** 2).sum(axis=1)
        nearness = np.exp(-distances / 2)
        mean = float(self.variance * (nearness @ np.asarray(self.weights)))
        return min(max(mean, self.lowest), self.highest), float(nearness.max())


class Prediction(NamedTuple):
    """A predicted peak, before its bound."""

    mib: float
    nearness: float


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """A fitted model. See the module's docstring."""

    parameters: float  # MiB of peak for each MiB of parameters: weights, gradients, workspaces
    input: float
    activations: Mapping[str, float]  # by family; "" for others
    activation_sizes: Mapping[str, ActivationSizes]  # by family; "" for others
    gpus: Sequence[tuple[GpuTraits, float]]  # those that were measured, with their contexts in MiB
    context_line: tuple[float, float]  # for other GPU models: MiB, and MiB for each logarithm of SMs
    correction: Correction
    margins: Mapping[str, float]  # logarithms of ratios, by what is unknown; see `margin_key`
    source: str = ""  # for people: what it was fitted on

    # -- predict ------------------------------------------------------------------------------

    def predict(self, features: MemoryFeatures) -> Estimate:
        """Predict the peak of a job. If the GPU model is unknown, the value is the median of those measured
        and the bound their maximum."""
        margin = self.margins[margin_key(features, self)]
        asked = [features] if features.gpu else [replace(features, gpu=gpu) for gpu, _ in self.gpus]
        found = [self.predict_mib(each) for each in asked]
        upper = max(each.mib * math.exp(margin + far_margin(each.nearness)) for each in found)
        value = float(np.median([each.mib for each in found]))
        return Estimate(value, max(value, upper), "features", self._describe(features))

    def predict_mib(self, features: MemoryFeatures) -> Prediction:
        """Predict the peak on the GPU model of the features."""
        complete = self.fill(features)
        assert complete.gpu is not None
        measured = {gpu.name: gpu for gpu, _ in self.gpus}
        complete = replace(complete, gpu=measured.get(complete.gpu.name, complete.gpu))
        correction, nearness = self.correction.evaluate(coordinates_of(complete))
        return Prediction(self.sum_parts(complete) * math.exp(correction), nearness)

    def sum_parts(self, complete: MemoryFeatures) -> float:
        """The sum of the parts, without the correction."""
        family = complete.family_key if complete.family_key in self.activations else ""
        assert complete.gpu is not None
        assert complete.activations_mib is not None
        assert complete.input_mib is not None
        return (
            self._context(complete.gpu)
            + self.parameters * complete.parameters_mib
            + complete.optimizer_state_mib
            + self.activations[family] * complete.activations_mib
            + self.input * complete.input_mib
        )

    def fill(self, features: MemoryFeatures) -> MemoryFeatures:
        """Replace what was not declared by what is typical of the family."""
        sizes = self.activation_sizes.get(features.family_key) or self.activation_sizes[""]
        activations, batch, input_mib = features.activations_mib, features.batch, features.input_mib
        if activations is None:
            assert batch is not None  # checked by MemoryFeatures
            per_batch = sizes.per_sample_mib * batch
            activations = sizes.per_input * input_mib if input_mib else per_batch
        if batch is None:
            batch = max(1.0, activations / sizes.per_sample_mib)
        if input_mib is None:
            input_mib = activations / sizes.per_input
        return replace(features, activations_mib=activations, batch=batch, input_mib=input_mib)

    def _context(self, gpu: GpuTraits) -> float:
        known = {known.name: context for known, context in self.gpus}
        if gpu.name in known:
            return known[gpu.name]
        fixed, slope = self.context_line
        highest = max(known.values(), default=fixed + slope * math.log(gpu.sms))
        return min(max(fixed + slope * math.log(gpu.sms), 0.0), 1.5 * highest)

    def _describe(self, features: MemoryFeatures) -> str:
        key = margin_key(features, self)
        return f"declared features{f' ({key})' if key != ALL_KNOWN else ''}; {self.source}".rstrip("; ")

    # -- JSON ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "gpus": [{**gpu._asdict(), "context_mib": context} for gpu, context in self.gpus],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryModel:
        fixed, slope = data["context_line"]
        return cls(
            **{
                **data,
                "activation_sizes": {
                    name: ActivationSizes(**sizes) for name, sizes in data["activation_sizes"].items()
                },
                "gpus": [_read_gpu(**gpu) for gpu in data["gpus"]],
                "context_line": (float(fixed), float(slope)),
                "correction": Correction(**data["correction"]),
            }
        )


def _read_gpu(context_mib: float, **traits: Any) -> tuple[GpuTraits, float]:
    return GpuTraits(**traits), float(context_mib)


def coordinates_of(complete: MemoryFeatures) -> Vector:
    """Where a job lies for the correction: logarithms of its features and of its GPU's."""
    assert complete.activations_mib is not None
    assert complete.batch is not None
    assert complete.gpu is not None
    per_sample = complete.activations_mib / complete.batch
    _, *traits = complete.gpu
    return np.log([per_sample, complete.parameters_mib, complete.batch, *traits])


def far_margin(nearness: float) -> float:
    """What is added to a margin: nothing where networks lie that were left out of a fit, FAR_MARGIN far from
    all jobs."""
    return FAR_MARGIN * (1.0 - min(1.0, nearness / NEAR))


ALL_KNOWN = "all known"


def margin_key(features: MemoryFeatures, model: MemoryModel) -> str:
    """What is unknown of a job, as the margins name it: `family unknown, activations unknown`."""
    names = {gpu.name for gpu, _ in model.gpus}
    unknown = []
    if features.family_key not in model.activations.keys() - {""}:
        unknown.append("family unknown")
    if features.activations_mib is None:
        unknown.append("activations unknown")
    if features.gpu and features.gpu.name not in names:
        unknown.append("GPU model not measured")
    return ", ".join(unknown) or ALL_KNOWN

"""Fits the model of `schedulers.prediction.memory_features` to measured peaks. Needs scikit-learn.

1. The parts of the sum, by least squares of the relative error, none of them below 0.
2. The correction, a Gaussian process on what the sum leaves; its lengths by maximum likelihood.
3. The margins of the upper bound: whole networks, families or GPU models are left out, and the model that was
   fitted without them predicts them. A margin is the ratio that few of them exceed.

A fit sees only the jobs that it is given. Its form (the parts, the coordinates of the correction, the rule
for margins) was chosen among several on SchedTune's profile, so figures on that profile are somewhat too
good; docs/prediction.md has those of a nested choice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.prediction.memory_features import (
    ALL_KNOWN,
    ActivationSizes,
    Correction,
    GpuTraits,
    MemoryFeatures,
    MemoryModel,
    Vector,
    coordinates_of,
    far_margin,
)

# Of the bounds for left-out jobs. Half of what Estimate.upper promises: the jobs of a network err together.
BROKEN_AT_MOST = 0.01
FEW_MARGIN = math.log(2.0)  # where too few groups were measured to know better
MOST_ROWS = 600  # the latest; the cost of the process grows with the cube
FEWEST_ROWS = 8
DIGITS = 6
# Where no job of a family declares its activations: about those of a CNN on images of 224 x 224.
TYPICAL_SIZES = ActivationSizes(per_sample_mib=100.0, per_input=170.0)
NO_CORRECTION = Correction((), (), 0.0, (), (), 0.0, 0.0)


class MeasuredJob(NamedTuple):
    """A job whose peak was measured. Its GPU model is known, its activations need not be."""

    features: MemoryFeatures
    network: str  # jobs of one network are left out together
    peak_mib: float


class Shape(NamedTuple):
    """What maximum likelihood chose for the correction."""

    lengths: tuple[float, ...]
    variance: float
    noise: float


def fit(jobs: Sequence[MeasuredJob], source: str = "") -> MemoryModel:
    """Fit a model. Raises ValueError if there are too few jobs."""
    jobs = jobs[-MOST_ROWS:]
    if len(jobs) < FEWEST_ROWS:
        raise ValueError(f"A memory model needs {FEWEST_ROWS} measured jobs; there are {len(jobs)}.")
    model, shape = _fit_parts_and_correction(jobs, None, source)
    return replace(model, margins=_find_margins(jobs, shape))


# -- the sum and its correction ---------------------------------------------------------------


def _fit_parts_and_correction(
    jobs: Sequence[MeasuredJob], shape: Shape | None, source: str = ""
) -> tuple[MemoryModel, Shape]:
    """Fit all but the margins. A given shape of the correction is kept."""
    parts = _fit_parts(jobs, source)
    complete = [parts.fill(job.features) for job in jobs]
    ratios = np.log([job.peak_mib / parts.sum_parts(each) for job, each in zip(jobs, complete, strict=True)])
    coordinates = np.array([coordinates_of(each) for each in complete])
    correction, shape = _fit_correction(coordinates, ratios, shape)
    return replace(parts, correction=correction), shape


def _fit_parts(jobs: Sequence[MeasuredJob], source: str) -> MemoryModel:
    from scipy.optimize import nnls  # slow to import, and not needed to predict

    features = [job.features for job in jobs]
    families = sorted({each.family_key for each in features} - {""})
    gpus = sorted({each.gpu for each in features if each.gpu})
    sizes = {family: _find_activation_sizes(features, family) for family in ["", *families]}
    blank = MemoryModel(0, 0, {}, sizes, [(gpu, 0.0) for gpu in gpus], (0.0, 0.0), NO_CORRECTION, {}, source)
    complete = [blank.fill(each) for each in features]
    peaks = np.array([job.peak_mib for job in jobs])
    state = np.array([each.optimizer_state_mib for each in features])
    contexts = [[float(each.gpu == gpu) for gpu in gpus] for each in features]
    declared = np.array([each.activations_mib is not None for each in features])

    def solve(by_family: bool, used: NDArray[np.bool_]) -> Vector:
        """The coefficients of parameters, input, activations (of each family) and contexts."""
        keys = families if by_family else [None]
        activations = [
            [each.activations_mib if key in (None, each.family_key) else 0.0 for key in keys]
            for each in complete
        ]
        fixed = [[each.parameters_mib, each.input_mib] for each in complete]
        columns = np.hstack([np.array(part, dtype=float) for part in (fixed, activations, contexts)])
        solution: Vector = nnls((columns / peaks[:, None])[used], ((peaks - state) / peaks)[used])[0]
        return solution

    every = np.ones(len(jobs), dtype=bool)
    common = solve(by_family=False, used=declared if declared.sum() >= FEWEST_ROWS else every)
    own = solve(by_family=True, used=every) if families else common
    slopes = dict(zip(families, own[2:], strict=False))
    for family in families:
        if sizes[family] == TYPICAL_SIZES and common[2] > 0:
            # The slope found is that of typical activations. Their size is what differs from other families.
            factor, slopes[family] = max(slopes[family] / common[2], 0.01), common[2]
            sizes[family] = ActivationSizes(*(_rounded(factor * size) for size in astuple(TYPICAL_SIZES)))
    found = own[len(own) - len(gpus) :]
    return replace(
        blank,
        activation_sizes=sizes,
        parameters=_rounded(own[0]),
        input=_rounded(own[1]),
        activations={"": _rounded(common[2]), **{name: _rounded(slope) for name, slope in slopes.items()}},
        gpus=[(gpu, _rounded(context)) for gpu, context in zip(gpus, found, strict=True)],
        context_line=_fit_context_line(gpus, found),
    )


def _find_activation_sizes(features: Sequence[MemoryFeatures], family: str) -> ActivationSizes:
    """The geometric means over the family's jobs, or over all jobs."""
    known = [
        (each.activations_mib, each.batch, each.input_mib)
        for each in features
        if each.activations_mib and each.batch and each.input_mib and family in ("", each.family_key)
    ]
    if not known:
        return TYPICAL_SIZES
    activations, batches, inputs = np.log(known).T
    return ActivationSizes(
        _rounded(np.exp(np.mean(activations - batches))), _rounded(np.exp(np.mean(activations - inputs)))
    )


def _fit_context_line(gpus: Sequence[GpuTraits], contexts: Vector) -> tuple[float, float]:
    """Contexts as a line over the logarithm of the number of SMs, for GPU models that were not measured."""
    sms = np.log([gpu.sms for gpu in gpus]) if gpus else np.array([])
    if len(set(sms)) < 2:
        return (_rounded(contexts.mean()) if len(contexts) else 0.0), 0.0
    slope, fixed = np.polyfit(sms, contexts, 1)
    return _rounded(fixed), _rounded(slope)


def _fit_correction(coordinates: Vector, ratios: Vector, shape: Shape | None) -> tuple[Correction, Shape]:
    center, scale = coordinates.mean(axis=0), coordinates.std(axis=0)
    scale[scale < 1e-9] = 1.0
    scaled = (coordinates - center) / scale
    shape = shape or _choose_shape(scaled, ratios)
    points = scaled / np.array(shape.lengths)
    distances = ((points[:, None, :] - points[None, :, :]) ** 2).sum(axis=2)
    covariance = shape.variance * np.exp(-distances / 2) + shape.noise * np.eye(len(points))
    correction = Correction(
        center=_rounded_list(center),
        scale=_rounded_list(scale * np.array(shape.lengths)),
        variance=_rounded(shape.variance),
        points=[_rounded_list(point) for point in points],
        weights=_rounded_list(np.linalg.solve(covariance, ratios)),
        lowest=_rounded(ratios.min()),
        highest=_rounded(ratios.max()),
    )
    return correction, shape


def _choose_shape(scaled: Vector, ratios: Vector) -> Shape:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    lengths = RBF([1.0] * scaled.shape[1], (0.3, 30.0))
    kernel = ConstantKernel(0.01, (1e-4, 1.0)) * lengths + WhiteKernel(1e-3, (1e-4, 0.1))
    process = GaussianProcessRegressor(kernel, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # at a limit a coordinate does not matter
        fitted: Any = process.fit(scaled, ratios).kernel_
    return Shape(tuple(fitted.k1.k2.length_scale), fitted.k1.k1.constant_value, fitted.k2.noise_level)


# -- the margins ------------------------------------------------------------------------------


Group = Callable[[MeasuredJob], str]
Hide = Callable[[MemoryFeatures], MemoryFeatures]


def _find_margins(jobs: Sequence[MeasuredJob], shape: Shape) -> dict[str, float]:
    """The margin for each kind of ignorance; see `margin_key`."""

    def leave_out(group: Group, hide: Hide) -> float:
        return _find_margin(_score_left_out(jobs, shape, group, hide))

    def network(job: MeasuredJob) -> str:
        return job.network

    def family(job: MeasuredJob) -> str:
        return job.features.family_key

    def gpu(job: MeasuredJob) -> str:
        return job.features.gpu.name if job.features.gpu else ""

    margins = {
        ALL_KNOWN: leave_out(network, _hide_nothing),
        "activations unknown": leave_out(network, _hide_activations),
        "family unknown": leave_out(family, _hide_family),
        "family unknown, activations unknown": leave_out(family, _hide_both),
    }
    margins["family unknown, activations unknown"] = max(margins.values())  # to know less narrows no bound
    other_gpu = leave_out(gpu, _hide_nothing)
    for key, margin in list(margins.items()):
        margins[key] = _rounded(max(margin, margins[ALL_KNOWN]))
        both = "GPU model not measured" if key == ALL_KNOWN else f"{key}, GPU model not measured"
        margins[both] = _rounded(max(margins[key], other_gpu))
    return margins


def _score_left_out(
    jobs: Sequence[MeasuredJob],
    shape: Shape,
    group: Group,
    hide: Hide,
) -> list[float]:
    """By how much each job exceeds what a model says that was fitted without its group: the logarithm of the
    ratio, without what is added far from other jobs. Empty if there are too few groups."""
    groups = sorted({group(job) for job in jobs})
    if len(groups) < 3:
        return []
    hides_activations = all(hide(job.features).activations_mib is None for job in jobs)
    scores = []
    for name in groups:
        rest = [job for job in jobs if group(job) != name]
        if len(rest) < FEWEST_ROWS:
            return []
        model, _ = _fit_parts_and_correction(rest, shape)
        for job in jobs:
            features = hide(job.features)
            if group(job) == name and (features.activations_mib is None) == hides_activations:
                found = model.predict_mib(features)
                scores.append(math.log(job.peak_mib / found.mib) - far_margin(found.nearness))
    return scores


def _find_margin(scores: Sequence[float]) -> float:
    """The conformal quantile: as many scores lie above it as bounds may be broken, counting the new job."""
    if not scores:
        return FEW_MARGIN
    rank = math.ceil((len(scores) + 1) * (1 - BROKEN_AT_MOST))
    if rank > len(scores):  # too few jobs to find so rare an excess
        return max(*scores, FEW_MARGIN)
    return max(0.0, sorted(scores)[rank - 1])


def _hide_nothing(features: MemoryFeatures) -> MemoryFeatures:
    return features


def _hide_activations(features: MemoryFeatures) -> MemoryFeatures:
    return replace(features, activations_mib=None)


def _hide_family(features: MemoryFeatures) -> MemoryFeatures:
    return replace(features, family="")


def _hide_both(features: MemoryFeatures) -> MemoryFeatures:
    return replace(features, activations_mib=None, family="")


# -- numbers ----------------------------------------------------------------------------------


def _rounded(value: float) -> float:
    """Enough digits for a prediction, and a short file."""
    return float(f"{float(value):.{DIGITS}g}")


def _rounded_list(values: Vector) -> list[float]:
    return [_rounded(value) for value in values]

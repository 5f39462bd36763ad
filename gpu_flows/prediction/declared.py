"""Memory from declared features: what an owner states of a training job, in options or in parameters.

The model is the one of the package, or a retrained one that the caller gives. It needs no scikit-learn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from gpu_flows.prediction.memory_profile import default_model
from gpu_flows.prediction.predictor_store import PredictorStore
from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.gpu_models import UnknownGpuModel, find_gpu_model
from gpu_flows.schedulers.prediction.memory_features import GpuTraits, MemoryFeatures, MemoryModel
from gpu_flows.schedulers.prediction.run_parameters import flatten, to_words

BYTES_PER_PARAMETER = 4  # mixed precision keeps the weights in 32 bits too
MIB = 2**20


def predict_from_features(
    *,
    parameters: float,
    activations_mib: float | None = None,
    batch: float | None = None,
    input_mib: float | None = None,
    optimizer: str = "",
    family: str = "",
    gpu: str = "",
    bytes_per_parameter: float = BYTES_PER_PARAMETER,
    model: MemoryModel | None = None,
) -> Estimate:
    """Predict the peak memory of a training in MiB. `parameters` is their number; sizes are of a whole batch.

    Raises ValueError if a feature is impossible, UnknownGpuModel (a ValueError) for a GPU that is not known.
    """
    features = MemoryFeatures(
        parameters_mib=parameters * bytes_per_parameter / MIB,
        activations_mib=activations_mib,
        batch=batch,
        input_mib=input_mib,
        optimizer=optimizer,
        family=family,
        gpu=GpuTraits.of(find_gpu_model(gpu)) if gpu else None,
    )
    return (model or default_model()).predict(features)


def load_model(store: PredictorStore) -> MemoryModel:
    """Return the retrained model of the store, or else the one of the package. Raises StoreError."""
    predictors = store.load_current()
    return (predictors and predictors.memory_features) or default_model()


class DeclaredFeatures:
    """Predicts the memory of jobs whose parameters declare their features."""

    def __init__(self, model: MemoryModel | None = None) -> None:
        self.model = model or default_model()

    def estimate(self, features: JobFeatures, gpu_model: str = "") -> Estimate | None:
        """None if too little is declared."""
        declared = find_features(features.parameters, gpu_model)
        return self.model.predict(declared) if declared else None


# -- from the parameters of a run -------------------------------------------------------------

_NAMES = {
    "parameters": r"((num|n|model|total) )?(parameters|params)( count)?",
    "activations_mib": r"activations( (mb|mib))?",
    "batch": r"((train|per device|per device train|micro|global) )?batch( size)?",
    "input_mib": r"input (mb|mib)",
    "optimizer": r"optim(izer)?( name)?",
    "family": r"(model )?(family|arch|architecture|model|model name|network|backbone)",
}
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


def find_features(parameters: Mapping[str, Any], gpu_model: str = "") -> MemoryFeatures | None:
    """Read the features from the parameters of a run, by their usual names. None if the number of the
    model's parameters is not among them, or neither activations nor a batch size."""
    found: dict[str, Any] = {}
    for name, value in flatten(parameters).items():
        for feature, pattern in _NAMES.items():
            if feature not in found and re.fullmatch(pattern, to_words(name)):
                found[feature] = value if feature in ("optimizer", "family") else _read_number(value)
    if not found.get("parameters"):
        return None
    try:
        return MemoryFeatures(
            parameters_mib=found["parameters"] * BYTES_PER_PARAMETER / MIB,
            activations_mib=found.get("activations_mib"),
            batch=found.get("batch"),
            input_mib=found.get("input_mib"),
            optimizer=str(found.get("optimizer") or ""),
            family=str(found.get("family") or ""),
            gpu=find_traits(gpu_model),
        )
    except ValueError:
        return None


def find_traits(gpu_model: str) -> GpuTraits | None:
    """The traits of a device's model, or None if it is not known."""
    try:
        return GpuTraits.of(find_gpu_model(gpu_model)) if gpu_model else None
    except UnknownGpuModel:
        return None


def _read_number(value: Any) -> float | None:
    """Return a number above 0, however it is written, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return parse_count(value)
    except ValueError:
        return None


def parse_count(value: str | float) -> float:
    """Return the number of `125M`, `1.25e8` or 125_000_000. Raises ValueError unless it is above 0."""
    text = str(value).strip().lower()
    unit = text[-1:] if text[-1:] in _UNITS else ""
    try:
        number = float(text.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is no number above 0; write it as 125000000, 1.25e8 or 125M")
    return number

"""Predicts the memory of a job that ran before, from the peaks that were recorded of it.

Jobs are compared by three keys, from exact to loose: the same flow with the same parameters; the same without
what does not change memory (seeds, learning rates, names, paths); and the same with only what sizes a model
or a batch. The first key with a recorded peak answers. Peaks are kept apart by GPU model; those of other
models serve, with a wider margin, until there is one of the model in question.

The value is a high quantile of the recent peaks, since a peak that was seen once can be needed again. The
margin of the upper bound shrinks with the number of peaks and grows with their spread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.run_parameters import (
    digest,
    flatten,
    to_words,
    usually_changes_memory,
)

RECENT = 20  # peaks kept for each key and GPU model
MOST_KEYS = 20_000  # beyond this the keys that were learned least recently are forgotten
VALUE_QUANTILE = 0.9
LEVELS = ("the same parameters", "the same parameters but for seeds and rates", "the same model and batch")
# Margins of a single peak, as shares of it. cuDNN's choice of algorithms alone makes equal runs differ by
# some percent, and single batch sizes jump by up to 14 %.
SINGLE_MARGIN = (0.10, 0.15, 0.40)
LEAST_MARGIN = 0.02
OTHER_GPU_MARGIN = 0.15
INCOMPLETE_MARGIN = 0.5  # of a job that did not complete, and needs more than it got

# A parameter whose name has one of these words sizes the model or the batch.
_SIZES = re.compile(
    r"\b(model|arch|architecture|network|backbone|family|hidden|layers?|depth|width|heads?|dim|channels"
    r"|classes|vocab|batch|size|seq|sequence|length|tokens|resolution|optimizer|precision|dtype|amp)\b"
)


class Peak(NamedTuple):
    """The most memory that a job used. `is_least`: it did not complete, and may need more."""

    mib: float
    is_least: bool
    device_mib: float = 0.0  # what it could use; 0: not known


class MemoryHistory:
    """Recorded peaks by key. Learns one job at a time, in the order of their ends."""

    def __init__(self) -> None:
        self._peaks: dict[str, dict[str, list[Peak]]] = {}  # by key, then by GPU model
        self.learned = 0

    # -- learn and estimate -------------------------------------------------------------------

    def learn(
        self,
        features: JobFeatures,
        gpu_model: str,
        peak_mb: float,
        is_least: bool = False,
        device_mb: float = 0.0,
    ) -> None:
        """Learn the peak of a job on each device. `is_least`: it needs at least so much, because it did not
        complete. `device_mb` is the memory that it could use; 0 if unknown."""
        if not (math.isfinite(peak_mb) and peak_mb > 0):
            return
        peak = Peak(float(peak_mb), is_least, float(device_mb))
        for key in _keys(features):
            by_gpu = self._peaks.pop(key, {})  # and insert again, as the latest
            by_gpu[gpu_model] = [*by_gpu.get(gpu_model, [])[1 - RECENT :], peak]
            self._peaks[key] = by_gpu
        while len(self._peaks) > MOST_KEYS:
            del self._peaks[next(iter(self._peaks))]
        self.learned += 1

    def estimate(self, features: JobFeatures, gpu_model: str = "") -> Estimate | None:
        """Predict the peak of a job on a GPU model, or on any. None for a job unlike those that ran."""
        for level, key in enumerate(_keys(features)):
            by_gpu = self._peaks.get(key)
            if by_gpu:
                is_other = bool(gpu_model) and gpu_model not in by_gpu
                asked = [gpu_model] if gpu_model in by_gpu else list(by_gpu)
                return _estimate([peak for gpu in asked for peak in by_gpu[gpu]], level, is_other)
        return None

    def find_enough(self, features: JobFeatures) -> float:
        """Return the memory of the smallest device on which like jobs completed, in MiB; 0 if not known.
        A job needs no larger one, even if it uses more where there is more: allocators keep what they got."""
        for level, key in enumerate(_keys(features)):
            by_gpu = self._peaks.get(key)
            if by_gpu:
                return _find_enough([peak for peaks in by_gpu.values() for peak in peaks], level)
        return 0.0

    # -- JSON ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {"learned": self.learned, "peaks": self._peaks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryHistory:
        history = cls()
        history.learned = int(data["learned"])
        history._peaks = {
            str(key): {
                str(gpu): [Peak(float(mib), bool(least), *size) for mib, least, *size in peaks]
                for gpu, peaks in by_gpu.items()
            }
            for key, by_gpu in data["peaks"].items()
        }
        return history


def _estimate(peaks: list[Peak], level: int, is_other_gpu: bool) -> Estimate:
    whole = [peak.mib for peak in peaks if not peak.is_least]
    least = max((peak.mib for peak in peaks if peak.is_least), default=0.0)
    value = float(np.quantile(whole, VALUE_QUANTILE, method="higher")) if whole else 0.0
    highest = max(whole, default=0.0)
    margin = max(SINGLE_MARGIN[level] / math.sqrt(max(1, len(whole))), LEAST_MARGIN)
    margin += 2 * float(np.std(whole)) / float(np.mean(whole)) if whole else 0.0
    if least > highest:  # no run with these parameters has completed with so much yet
        value = highest = least
        margin = max(margin, INCOMPLETE_MARGIN)
    margin += OTHER_GPU_MARGIN if is_other_gpu else 0.0
    runs = f"{len(peaks)} run{'s' if len(peaks) > 1 else ''}"
    detail = f"{runs} with {LEVELS[level]}{' on other GPU models' if is_other_gpu else ''}"
    return Estimate(value, highest * (1 + margin), "history", detail)


def _find_enough(peaks: list[Peak], level: int) -> float:
    complete = [peak for peak in peaks if not peak.is_least]
    highest = max((peak.mib for peak in complete), default=0.0)
    for size in sorted({peak.device_mib for peak in complete if peak.device_mib}):
        used = max(peak.mib for peak in complete if peak.device_mib == size)
        if any(peak.is_least and peak.device_mib == size and peak.mib > used for peak in peaks):
            continue  # others ran out of memory there
        if LEVELS[level] == LEVELS[-1] and size < highest:
            continue  # these jobs are not all the same, and some needed more
        return size
    return 0.0


# -- keys -------------------------------------------------------------------------------------


def _keys(features: JobFeatures) -> Iterator[str]:
    """The keys of a job, from exact to loose. The loosest exists only if the parameters name a size. A flow
    that runs commands says little of a job, so its command without the options stays part of the key."""
    flat = flatten(features.parameters)
    effective = {name: value for name, value in flat.items() if usually_changes_memory(name)}
    sizes = {name: value for name, value in effective.items() if _SIZES.search(to_words(name))}
    whose = [features.flow, features.deployment, features.gpus]
    yield digest(["exact", whose, flat])
    yield digest(["effective", whose, effective])
    if sizes:
        yield digest(["sizes", [features.flow, features.gpus, flat.get("command")], sizes])

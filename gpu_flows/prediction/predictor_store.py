"""Keeps learned predictors as JSON files: one for each version, and one that names the current version.

predictors/20261118T030000Z.json     numbers and texts only; nothing in it is ever executed
predictors/current.json              {"version": "20261118T030000Z"}, replaced in one step
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_flows.common.files import write_atomically
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.memory_features import MemoryModel
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory

SCHEMA = 1
KEPT = 10  # versions
_PARTS = ("memory_features", "memory_history", "durations")  # fields of Predictors
_CURRENT = "current.json"
_VERSION = re.compile(r"\d{8}T\d{6}Z(-\d+)?")


class StoreError(Exception):
    """A file cannot be used. The message says which one, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Predictors:
    """The learned predictors of one version. A part that was never learned is None."""

    version: str = ""
    created: float = 0.0
    learned_from: float = 0.0  # the first end of the jobs that were learned
    learned_until: Mapping[str, float] = field(default_factory=dict)  # the last one, of each learned part
    memory_features: MemoryModel | None = None
    memory_history: MemoryHistory | None = None
    durations: DurationPredictor | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)  # of the judgement before it became current


class PredictorStore:
    """The versions in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load_current(self) -> Predictors | None:
        """Return the current predictors, or None if none were stored yet. Raises StoreError."""
        version = self.current_version()
        return self.load(version) if version else None

    def current_version(self) -> str:
        """Return the current version, or an empty text. Cheap: to see whether there is a new one."""
        path = self.folder / _CURRENT
        if not path.exists():
            return ""
        version = _read_json(path).get("version")
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise StoreError(f"{path} names no version. Remove it, or run `gpu-flows predict train --fresh`.")
        return version

    def load(self, version: str) -> Predictors:
        """Return the predictors of a version. Raises StoreError."""
        path = self._path(version)
        data = _read_json(path)
        if data.get("schema") != SCHEMA:
            raise StoreError(
                f"{path} has schema {data.get('schema')!r}; this gpu-flows reads {SCHEMA}."
                " Run `gpu-flows predict train --fresh` to make a new one, or upgrade gpu-flows."
            )
        try:
            return _read_predictors(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} is damaged ({error!r}). Run `gpu-flows predict train --fresh` to make a new one."
            ) from None

    def save(self, predictors: Predictors) -> Path:
        """Store the predictors and make them current. Old versions are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(predictors.version)
        write_atomically(path, json.dumps(_describe(predictors)) + "\n", durable=True)
        write_atomically(self.folder / _CURRENT, json.dumps({"version": predictors.version}), durable=True)
        for old in self.versions()[:-KEPT]:
            if old != predictors.version:
                self._path(old).unlink(missing_ok=True)
        return path

    def versions(self) -> list[str]:
        """Return the stored versions, oldest first."""
        stems = (path.stem for path in self.folder.glob("*.json"))
        return sorted(stem for stem in stems if _VERSION.fullmatch(stem))

    def new_version(self, now: float) -> str:
        """Return a name for a version that is made now."""
        name = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        number, version = 1, name
        while self._path(version).exists():
            number += 1
            version = f"{name}-{number}"
        return version

    def _path(self, version: str) -> Path:
        return self.folder / f"{version}.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}). Run `gpu-flows predict train --fresh` to make a new one."
        ) from None
    if not isinstance(data, dict):
        raise StoreError(
            f"{path} holds no predictors. Run `gpu-flows predict train --fresh` to make new ones."
        )
    return data


def _describe(predictors: Predictors) -> dict[str, Any]:
    features, history, durations = (
        predictors.memory_features,
        predictors.memory_history,
        predictors.durations,
    )
    return {
        "schema": SCHEMA,
        "version": predictors.version,
        "created": predictors.created,
        "learned_from": predictors.learned_from,
        "learned_until": dict(predictors.learned_until),
        "figures": dict(predictors.figures),
        "memory_features": features.to_json() if features else None,
        "memory_history": history.to_json() if history else None,
        "durations": durations.to_json() if durations else None,
    }


def _read_predictors(data: Mapping[str, Any]) -> Predictors:
    features, history, durations = data["memory_features"], data["memory_history"], data["durations"]
    return Predictors(
        version=str(data["version"]),
        created=float(data["created"]),
        learned_from=float(data["learned_from"]),
        learned_until=_read_learned_until(data),
        memory_features=MemoryModel.from_json(features) if features else None,
        memory_history=MemoryHistory.from_json(history) if history else None,
        durations=DurationPredictor.from_json(durations) if durations else None,
        figures=dict(data["figures"]),
    )


def _read_learned_until(data: Mapping[str, Any]) -> dict[str, float]:
    """The last learned end of each part. Early files have one for all parts."""
    until = data["learned_until"]
    if isinstance(until, Mapping):
        return {str(part): float(end) for part, end in until.items()}
    return {part: float(until) for part in _PARTS if data[part]}

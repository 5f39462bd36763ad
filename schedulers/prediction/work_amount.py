"""How much work the flat parameters of a run ask for: epochs, steps, samples or seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# The first name of each row that a run has is used. Amounts of different rows are multiplied.
_SECONDS = ("seconds", "duration", "duration_s", "duration_seconds", "sleep_seconds", "minutes", "hours")
_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs")
_STEPS = (
    "steps",
    "max_steps",
    "num_steps",
    "total_steps",
    "steps_per_epoch",
    "iterations",
    "max_iterations",
    "num_iterations",
    "iters",
    "max_iters",
)
_SAMPLES = ("samples", "num_samples", "n_samples", "max_samples", "train_samples", "dataset_size")
_BATCH = ("batch_size", "batch", "per_device_train_batch_size", "train_batch_size", "batchsize")
_MODEL = ("model", "model_name", "model_name_or_path", "network", "arch", "architecture")


LEAST, MOST = 1e-6, 1e15  # an amount beyond these is a mistake, and times per unit of it are no numbers


class Work(NamedTuple):
    """An amount of work, in a unit that only jobs with the same `unit` share."""

    unit: str  # the names of the parameters that it was computed from
    amount: float


def find_work(parameters: Mapping[str, Any]) -> Work | None:
    """Return the work that the parameters ask for; None if none of them is an amount.

    A number of steps is counted in samples if the batch size is known. Epochs over a data set that the
    parameters do not describe are counted as epochs.
    """
    if seconds := _first(parameters, _SECONDS):
        return Work(*seconds)
    found = [one for names in (_EPOCHS, _STEPS, _SAMPLES) if (one := _first(parameters, names))]
    if not found:
        return None
    names, total = [name for name, _ in found], 1.0
    for _, amount in found:
        total *= amount
    steps_counted = any(name in _STEPS for name in names)
    if steps_counted and not any(name in _SAMPLES for name in names):
        batch = _first(parameters, _BATCH)
        if batch:
            names, total = [*names, batch[0]], total * batch[1]
    elif steps_counted:  # steps over so many samples: the samples do not multiply them
        total /= next(amount for name, amount in found if name in _SAMPLES)
    return Work("*".join(names), total)


def find_epochs(parameters: Mapping[str, Any]) -> int:
    """Return how many epochs the run has; 0 if its parameters do not tell."""
    found = _first(parameters, _EPOCHS)
    return int(found[1]) if found else 0


def find_steps(parameters: Mapping[str, Any]) -> int:
    """Return how many steps the whole run has; 0 if its parameters do not tell."""
    found = _first(parameters, tuple(name for name in _STEPS if name != "steps_per_epoch"))
    return int(found[1]) if found and not find_epochs(parameters) else 0


def find_model(parameters: Mapping[str, Any]) -> str:
    """Return the name of the network that the run trains; empty if its parameters name none."""
    for name in _MODEL:
        value = parameters.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _first(parameters: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, float] | None:
    for name in names:
        value = parameters.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST:
            return name, float(value)
    return None

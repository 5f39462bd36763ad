"""The parameters of a training. The Prefect UI draws its form from them, so this module imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from gpu_flows.checkpoints.resumable_loop import EVERY_S
from gpu_flows.common.forms import Form
from gpu_flows.training.registry import Registry, datasets, models


def _require_model(name: str) -> str:
    models.get(name)
    return name


def _require_dataset(name: str) -> str:
    if name:
        datasets.get(name)
    return name


# In the schema both are enums, as a Literal would be, but with the names that are registered by then.


def _list_models(schema: dict[str, Any]) -> None:
    schema["enum"] = models.names()
    schema["description"] = _describe(models)


def _list_datasets(schema: dict[str, Any]) -> None:
    schema["enum"] = ["", *datasets.names()]
    schema["description"] = f"What to learn from; empty means the model's own. {_describe(datasets)}"


def _describe(registry: Registry[Any]) -> str:
    return " ".join(f"{name}: {registry.describe(name)}" for name in registry.names())


class TrainConfig(Form):
    """What to train, and for how long. The training ends at the first limit it reaches."""

    model_config = ConfigDict(extra="forbid", title="Training")

    model: Annotated[str, AfterValidator(_require_model)] = Field(
        default="mlp", json_schema_extra=_list_models
    )
    dataset: Annotated[str, AfterValidator(_require_dataset)] = Field(
        default="", json_schema_extra=_list_datasets
    )
    size: int = Field(default=1, ge=1, le=64)
    """Width of the network: 1 takes milliseconds a step on a CPU, 32 keeps a GPU busy."""

    samples: int = Field(default=2048, ge=16, le=1_000_000)
    """How many samples to generate and learn from."""

    batch_size: int = Field(default=64, ge=1, le=65_536)
    """Samples per step, over all devices of the job together."""

    batch: Literal["keep", "scale"] = Field(default="keep", title="Batch on several devices")
    """Keep the batch size and split it over the devices, or scale it: that many samples on each device."""

    precision: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Precision of the arithmetic. The 16-bit ones are mixed precision: the weights stay in 32 bits."""

    epochs: int = Field(default=5, ge=1, le=1_000_000)
    """How many times to go through the samples."""

    steps: int = Field(default=0, ge=0, title="Most steps")
    """Stop after this many steps; 0 sets no limit."""

    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False, title="Most seconds")
    """Stop after this many seconds of training; 0 sets no limit."""

    steps_per_second: float = Field(default=0.0, ge=0, allow_inf_nan=False, title="Pace")
    """At most this many steps per second, to leave processor time to other jobs; 0 means full speed."""

    learning_rate: float = Field(default=0.003, gt=0, le=10)
    """Step size of the Adam optimizer."""

    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """On a CPU, the same seed gives the same losses."""

    threads: int = Field(default=1, ge=1, le=256, title="CPU threads")
    """Threads that torch may use on a CPU. Several jobs often share few cores."""

    checkpoint_seconds: float = Field(
        default=EVERY_S, ge=0, allow_inf_nan=False, title="Seconds between checkpoints"
    )
    """The most work that a kill can lose; 0 saves after every step."""

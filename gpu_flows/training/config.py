"""What a training is asked to do. The Prefect UI draws its form from this model, so no torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpu_flows.checkpoints.resuming import EVERY_S
from gpu_flows.training.registry import datasets, models


def _known_model(name: str) -> str:
    models.get(name)
    return name


def _known_dataset(name: str) -> str:
    if name:
        datasets.get(name)
    return name


# In the schema both are enums, as a Literal would give, but filled from the registry as it is by then.


def _list_models(schema: dict[str, Any]) -> None:
    schema["enum"] = models.names()
    schema["description"] = " ".join(f"{name}: {models.describe(name)}" for name in models.names())


def _list_datasets(schema: dict[str, Any]) -> None:
    schema["enum"] = ["", *datasets.names()]
    known = " ".join(f"{name}: {datasets.describe(name)}" for name in datasets.names())
    schema["description"] = f"What to learn from; empty means the model's own. {known}"


class TrainConfig(BaseModel):
    """What to train, and for how long. Training ends at the first limit it meets."""

    model_config = ConfigDict(extra="forbid", title="Training")

    model: Annotated[str, AfterValidator(_known_model)] = Field(
        default="mlp", title="Model", json_schema_extra=_list_models
    )
    dataset: Annotated[str, AfterValidator(_known_dataset)] = Field(
        default="", title="Dataset", json_schema_extra=_list_datasets
    )
    size: int = Field(
        default=1,
        ge=1,
        le=64,
        title="Size",
        description="Width of the network: 1 takes milliseconds a step on a CPU, 32 keeps a GPU busy.",
    )
    samples: int = Field(
        default=2048,
        ge=16,
        le=1_000_000,
        title="Samples",
        description="How many examples to make and learn from.",
    )
    batch_size: int = Field(
        default=64,
        ge=1,
        le=65_536,
        title="Batch size",
        description="Examples per step, over all devices of the job together.",
    )
    batch: Literal["keep", "scale"] = Field(
        default="keep",
        title="Batch on several devices",
        description="Keep the batch size and split it over the devices, or scale it: as many on each.",
    )
    precision: Literal["float32", "bfloat16", "float16", "float64"] = Field(
        default="float32",
        title="Precision",
        description="Of the arithmetic. The 16-bit ones are mixed precision: the weights stay in 32 bits.",
    )
    epochs: int = Field(
        default=5,
        ge=1,
        le=1_000_000,
        title="Epochs",
        description="How many times to go through the examples.",
    )
    steps: int = Field(
        default=0,
        ge=0,
        title="Most steps",
        description="Stop after this many steps; 0 means only the epochs count.",
    )
    seconds: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        title="Most seconds",
        description="Stop after this many seconds of training; 0 means only the epochs count.",
    )
    steps_per_second: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        title="Pace",
        description="At most this many steps a second, to leave the processor to others; 0 means full speed.",
    )
    learning_rate: float = Field(
        default=0.003, gt=0, le=10, title="Learning rate", description="Step width of the Adam optimizer."
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        title="Seed",
        description="On a CPU, the same seed gives the same losses.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        le=256,
        title="CPU threads",
        description="Threads torch may use on a CPU; several jobs often share few cores.",
    )
    checkpoint_seconds: float = Field(
        default=EVERY_S,
        ge=0,
        allow_inf_nan=False,
        title="Seconds between checkpoints",
        description="The most work that a kill can lose; 0 saves after every step.",
    )

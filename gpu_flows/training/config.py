"""What a training is asked to do. The Prefect UI draws its form from this model, so no torch here."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpu_flows.training import registry


def _known(name: str) -> str:
    registry.builder(name)
    return name


_MODELS = " ".join(f"{name}: {registry.describe(name)}" for name in registry.names())


class TrainConfig(BaseModel):
    """What to train, and for how long. Training ends at the first limit it meets."""

    model_config = ConfigDict(extra="forbid", title="Training")

    # An enum in the schema, as a Literal would give, but filled from the registry.
    model: Annotated[str, AfterValidator(_known)] = Field(
        default="mlp", title="Model", description=_MODELS, json_schema_extra={"enum": [*registry.names()]}
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

"""`gpu-flows predict memory`: the GPU memory of a training that has not run yet."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.options import (
    JsonOption,
    duration_option,
    examples,
    parse_assignments,
    parse_json_or_text,
    quantity_option,
)
from gpu_flows.cli.predict.declared_memory import note_variants, show_declared_memory
from gpu_flows.common.quantities import parse_megabytes
from gpu_flows.prediction.declared import parse_count
from gpu_flows.prediction.trace_process import (
    STEPS,
    TIME_LIMIT_S,
    TracedMemory,
    TraceError,
    TraceOptionError,
    trace_with_parts,
)
from gpu_flows.schedulers.prediction.gpu_models import GPU_MODELS, GpuModel, UnknownGpuModel, find_gpu_model

DEFAULT_GPU = "A100"


def parse_mib(text: str) -> float:
    """A bare number is MiB."""
    return float(parse_megabytes(text, "MB"))


@examples(
    "gpu-flows predict memory mymodule:make_step --batch 64 --optimizer AdamW --precision bf16 --gpu A100",
    "gpu-flows predict memory mymodule:make_step --gpu 4090 --set width=1024 --json",
    "gpu-flows predict memory gpu_flows.training.step:make_step --batch 256 --set model=transformer",
    "gpu-flows predict memory --parameters 25.6M --batch 32 --optimizer AdamW --family resnet --gpu 3090",
)
def memory(
    step: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:FUNCTION]",
            help="A function that makes a training step (see docs/prediction.md).",
        ),
    ] = "",
    gpu: Annotated[
        str, typer.Option(help="The GPU model, or a part of its name. Default: A100 for a step, else any.")
    ] = "",
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="A class of torch.optim, such as AdamW or SGD.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another argument of the function."),
    ] = None,
    parameters: Annotated[
        float | None,
        quantity_option("N", "Without a step: how many parameters, such as 125M.", parse_count),
    ] = None,
    activations: Annotated[
        float | None,
        quantity_option("SIZE", "Without a step: outputs of all layers for a batch.", parse_mib),
    ] = None,
    input_size: Annotated[
        float | None, quantity_option("SIZE", "Without a step: one batch of input.", parse_mib)
    ] = None,
    family: Annotated[str | None, typer.Option(help="Without a step: such as resnet or vgg.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="How many steps to trace.")] = STEPS,
    time_limit: Annotated[float, duration_option("The longest that the trace may take.")] = TIME_LIMIT_S,
    as_json: JsonOption = False,
) -> None:
    """Predict the GPU memory of a training step, without a GPU and without running it.

    The step is traced with fake tensors in a process of its own: weights, gradients, optimizer state,
    activations, library workspaces, and the gaps that torch's allocator leaves between them. Without a step,
    the prediction is made from the number of parameters and what else is declared.
    """
    declared = {
        "parameters": parameters,
        "activations_mib": activations,
        "input_mib": input_size,
        "family": family,
    }
    if not step:
        if parameters is None:
            raise BadInput("Nothing to predict from.", "Name a training step, or give --parameters.")
        if precision or settings:
            raise BadInput("Without a step, --precision and --set are not used.", "Leave them out.")
        show_declared_memory({**declared, "batch": batch, "optimizer": optimizer, "gpu": gpu}, as_json)
        return
    if any(value is not None for value in declared.values()):
        raise BadInput(
            "A step is traced, so --parameters, --activations, --input-size and --family are not used."
        )
    given = {"batch": batch, "optimizer": optimizer, "precision": precision}
    options = {name: value for name, value in given.items() if value is not None}
    options |= parse_assignments(settings or (), "--set", parse_json_or_text)
    try:
        model = find_gpu_model(gpu or DEFAULT_GPU)  # a mistyped name must not be taken for an unknown GPU
        traced = trace_with_parts(
            step, options, model.name, needed=tuple(options), steps=steps, time_limit_s=time_limit
        )
    except (UnknownGpuModel, TraceOptionError) as error:
        raise BadInput(str(error)) from error
    except TraceError as error:
        raise CommandError(str(error)) from error
    note_variants(gpu or DEFAULT_GPU)
    fits_on = _find_fitting(traced, model)
    if as_json:
        output.print_json(_to_json(step, options, traced, model, fits_on))
        return
    estimate = traced.estimate
    verdict = "it may not fit" if traced.fits else "it does not fit"
    if estimate.upper <= model.memory_mib:
        verdict = "it fits"
    parts = [f"{part:<14}{mib:>9,.0f} MiB" for part, mib in traced.parts_mib.items() if mib >= 0.5]
    output.show(
        output.make_value_list(
            ("memory", f"{estimate.value:,.0f} MiB"),
            ("at most", f"{estimate.upper:,.0f} MiB"),
            ("how", f"{estimate.how}: {steps} steps with fake tensors, in {traced.seconds:.1f} s"),
            ("on", f"{model.name} with {model.memory_mib:,} MiB: {verdict}"),
            ("made of", "\n".join(parts)),
            ("fits on", _describe_fitting(fits_on)),
        )
    )


def _find_fitting(traced: TracedMemory, taken: GpuModel) -> list[str]:
    """The GPU models on which the upper bound fits. Only the context differs between models here."""
    torch_upper = traced.estimate.upper - taken.context_mib
    return [model.name for model in GPU_MODELS if torch_upper + model.context_mib <= model.memory_mib]


def _describe_fitting(names: list[str]) -> str:
    if len(names) == len(GPU_MODELS):
        return "every known GPU model"
    return ", ".join(names) or "none of the known GPU models"


def _to_json(
    step: str, options: dict[str, Any], traced: TracedMemory, taken: GpuModel, fits_on: list[str]
) -> dict[str, Any]:
    return {
        "step": step,
        "options": options,
        "gpu": traced.gpu,
        "memory_mib": traced.estimate.value,
        "upper_mib": traced.estimate.upper,
        "how": traced.estimate.how,
        "fits": traced.estimate.upper <= taken.memory_mib,
        "parts_mib": traced.parts_mib,
        "fits_on": fits_on,
        "seconds": traced.seconds,
    }

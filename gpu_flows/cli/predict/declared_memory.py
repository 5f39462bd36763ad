"""The part of `gpu-flows predict memory` for a job without a training step: memory from declared features."""

from __future__ import annotations

from typing import Any

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.config.paths import predictor_folder
from gpu_flows.prediction.declared import load_model, predict_from_features
from gpu_flows.prediction.predictor_store import PredictorStore, StoreError
from gpu_flows.schedulers.prediction.gpu_models import find_gpu_model, find_variants
from gpu_flows.schedulers.prediction.memory_features import is_known_optimizer


def note_variants(gpu: str) -> None:
    """Say which size of memory was taken, if the name stands for several."""
    taken, *others = find_variants(gpu)
    if others:
        names = ", ".join(model.name for model in others)
        output.print_remark(f"{gpu} is taken as {taken.name}. There is also: {names}.")


def show_declared_memory(features: dict[str, Any], as_json: bool) -> None:
    """Predict from the features that are not None, and print the prediction."""
    given = {name: value for name, value in features.items() if value is not None}
    try:
        model = load_model(PredictorStore(predictor_folder()))
        estimate = predict_from_features(**given, model=model)
        device = find_gpu_model(given["gpu"]) if given.get("gpu") else None
    except StoreError as error:
        raise CommandError(str(error)) from None
    except ValueError as error:
        raise BadInput(str(error)) from None
    if given.get("gpu"):
        note_variants(given["gpu"])
    if (optimizer := given.get("optimizer")) and not is_known_optimizer(optimizer):
        output.print_remark(f"Optimizer {optimizer!r} is not known: its state is counted as that of Adam.")
    if as_json:
        fits = estimate.upper <= device.memory_mib if device else None
        found = {"memory_mib": estimate.value, "upper_mib": estimate.upper, "how": estimate.how, "fits": fits}
        output.print_json({"features": given, **found, "detail": estimate.detail})
        return
    verdict = ""
    if device:
        fits_text = "it may not fit" if estimate.value <= device.memory_mib else "it does not fit"
        if estimate.upper <= device.memory_mib:
            fits_text = "it fits"
        verdict = f"{device.name} with {device.memory_mib:,} MiB: {fits_text}"
    output.show(
        output.make_value_list(
            ("memory", f"{estimate.value:,.0f} MiB"),
            ("at most", f"{estimate.upper:,.0f} MiB"),
            ("how", f"{estimate.how}: {estimate.detail}"),
            ("on", verdict),
        )
    )

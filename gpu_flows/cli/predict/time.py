"""`gpu-flows predict time`: how long a job would take, from the history of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    DatabaseOption,
    JsonOption,
    PoolOption,
    examples,
    parse_assignments,
    parse_json_or_text,
)
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.prediction.warehouse_rows import read_ended_jobs
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.gpu_models import UnknownGpuModel, find_gpu_model
from gpu_flows.schedulers.prediction.run_parameters import flatten

MOST_SHOWN, MOST_CHARACTERS = 12, 40  # assumed parameters that are shown, and of the value of each


@examples(
    "gpu-flows predict time train --set model=cnn --set epochs=20 --gpu A100",
    "gpu-flows predict time command --set command='python train.py --epochs 3' --user ana",
    "gpu-flows predict time fine-tune/nightly --gpus 4 --json",
)
def time(
    job: Annotated[
        str, typer.Argument(metavar="FLOW[/DEPLOYMENT]", help="The flow, with a deployment of it or without.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the run.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="The GPU model as `gpu-flows gpus` shows it; default: any.")] = "",
    gpus: Annotated[int, typer.Option(min=1, help="How many devices.")] = 1,
    user: Annotated[str, typer.Option(help="Whose job it is.")] = "",
    database: DatabaseOption = None,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Predict the time of a job on its devices from completed jobs: the median and the 90th percentile.

    Jobs with the same parameters count most, then those of the same flow, model and size, and of the same
    user. Amounts of work (epochs, steps, samples) and GPU models that were not seen follow from others.
    Parameters that are not given are those of the flow's last job.
    """
    flow, _, deployment = job.partition("/")
    given = parse_assignments(settings or (), "--set", parse_json_or_text)
    predictor, last = DurationPredictor(), dict[str, JobFeatures]()  # by flow
    names, models = set[str](), set[str]()  # of the flow's parameters, and of the GPUs that jobs ran on
    try:
        ended = read_ended_jobs(database or find_warehouse(pool))
    except QueryError as error:
        raise CommandError(str(error)) from None
    for one in ended:
        if one.is_complete:
            predictor.learn(one.features, one.gpu_model, one.gpus, one.seconds)
            last[one.features.flow] = one.features
            models.add(one.gpu_model)
            if one.features.flow == flow:
                names |= flatten(one.features.parameters).keys()
    if not last:
        raise CommandError("No job has completed yet, so there is nothing to predict from.")
    if flow not in last:
        raise BadInput(f"No job of flow {flow!r} has completed yet. There are: {', '.join(sorted(last))}.")
    _check_gpu(gpu, models)
    wanted = _name_as_recorded(given, names, flow)
    assumed = {name: value for name, value in flatten(last[flow].parameters).items() if name not in wanted}
    parameters = assumed | wanted
    estimate = predictor.estimate(JobFeatures(flow, deployment, user, gpus, parameters), gpu, gpus)
    assert estimate is not None, "a job has been learned"
    if as_json:
        output.print_json(
            {
                "flow": flow,
                "deployment": deployment,
                "parameters": parameters,
                "assumed": sorted(assumed),
                "gpu": gpu,
                "gpus": gpus,
                "p50_s": estimate.value,
                "p90_s": estimate.upper,
                "how": estimate.how,
                "detail": estimate.detail,
            }
        )
        return
    output.show(
        output.make_value_list(
            ("half of such jobs", f"within {output.format_duration(estimate.value)}"),
            ("nine in ten", f"within {output.format_duration(estimate.upper)}"),
            ("from", estimate.detail),
            ("assuming", f"{_list_values(assumed)} (as in the last run)" if assumed else ""),
        )
    )


def _name_as_recorded(given: Mapping[str, Any], names: set[str], flow: str) -> dict[str, Any]:
    """Return the given parameters under the flat names that predictors know: `config.epochs` is `epochs`.
    Raises BadInput for a name that no run of the flow had, because it would have no effect."""
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in given.items():
        flat = flatten({name: value})
        for path, each in flat.items():
            own = path if path in names else path.rpartition(".")[2]
            if own not in names and name != "command":  # a command may have options that are new
                unknown.append(path)
            found[own] = each
    if unknown:
        known = f"They had: {', '.join(sorted(names))}." if names else "They had none."
        raise BadInput(f"No completed run of flow {flow!r} had a parameter {', '.join(unknown)}. {known}")
    return found


def _check_gpu(gpu: str, models: set[str]) -> None:
    if not gpu or gpu in models:
        return
    try:
        find_gpu_model(gpu)
    except UnknownGpuModel:
        seen = ", ".join(sorted(filter(None, models))) or "none that is known"
        raise BadInput(
            f"GPU model {gpu!r} is not known, and no job has run on one. Jobs ran on: {seen}."
        ) from None


def _list_values(parameters: Mapping[str, Any]) -> str:
    shown = [
        f"{name}={str(value)[:MOST_CHARACTERS]}" for name, value in list(parameters.items())[:MOST_SHOWN]
    ]
    return ", ".join(shown) + (", ..." if len(parameters) > MOST_SHOWN else "")

"""`gpu-flows predict train`: retrain the predictors from the warehouse, now."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.options import DEFAULT_POOL, DatabaseOption, JsonOption, PoolOption, examples
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.config.paths import predictor_folder
from gpu_flows.prediction.predictor_store import PredictorStore, StoreError
from gpu_flows.prediction.retraining import describe_verdict, retrain_and_store


@examples("gpu-flows predict train", "gpu-flows predict train --fresh --json")
def train(
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was learned before.")] = False,
    database: DatabaseOption = None,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Retrain the predictors of memory and time on the jobs in the warehouse.

    New predictors are judged on the latest jobs, which they have not learned. They replace the current ones
    only if they are as good and their upper bounds hold. The `retrain` deployment does the same every day.
    """
    store = PredictorStore(predictor_folder())
    say = output.print_remark if as_json else print
    try:
        done = retrain_and_store(database or find_warehouse(pool), store, time.time(), fresh=fresh, say=say)
    except (QueryError, StoreError) as error:
        raise CommandError(str(error)) from None
    version = done.predictors.version if done.predictors else store.current_version()
    if as_json:
        verdicts = {verdict.part: describe_verdict(verdict) for verdict in done.verdicts}
        output.print_json({"version": version, "replaced": bool(done.predictors), "parts": verdicts})
        return
    print(f"Current predictors: {version or 'those of the package'}.")

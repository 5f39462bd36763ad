"""`gpu-flows predict evaluate`: how good the predictions of completed jobs were."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.cli import output
from gpu_flows.cli.charts import require_charts
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.options import DEFAULT_POOL, DatabaseOption, JsonOption, PoolOption, examples
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.common.files import write_atomically
from gpu_flows.prediction import evaluation
from gpu_flows.prediction.evaluation import ALL_KINDS


@examples("gpu-flows predict evaluate", "gpu-flows predict evaluate --kinds --charts .")
def evaluate(
    kinds: Annotated[bool, typer.Option("--kinds", help="Show each kind of job too.")] = False,
    charts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a page of figures, calibration.html.")
    ] = None,
    database: DatabaseOption = None,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Compare what was predicted of completed jobs with what they needed.

    The error is that of the predicted value. `covered` is the share of jobs that did not need more than the
    upper bound: at least 98% for memory, 90% for time.
    """
    if charts:
        require_charts("--charts")
    try:
        comparisons = evaluation.read_comparisons(database or find_warehouse(pool))
    except QueryError as error:
        raise CommandError(str(error)) from None
    if charts:
        charts.mkdir(parents=True, exist_ok=True)
        page = charts / "calibration.html"
        write_atomically(page, evaluation.render_calibration(comparisons))
        output.print_remark(f"Wrote {page}")
    found = evaluation.evaluate(comparisons)
    if as_json:
        output.print_json([asdict(each) for each in found])
        return
    if not found:
        output.print_remark("No job with a prediction has completed yet.")
        return
    columns = ["quantity", "how", "kind", "jobs", "median error", "p90 error", "worst under", "covered"]
    rows = [
        [each.quantity, each.how, each.kind, each.jobs]
        + [f"{share:.1%}" for share in (each.median_error, each.p90_error, each.worst_under, each.covered)]
        for each in found
        if kinds or each.kind == ALL_KINDS
    ]
    output.show(output.make_table(columns, rows, right=columns[3:]))

"""`gpu-flows simulate`: run a workload on a simulated cluster, under one or more policies."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from gpu_flows.cli import output
from gpu_flows.cli.options import JsonOption, accepts, examples
from gpu_flows.cli.simulation.inputs import Inputs, read_inputs
from gpu_flows.cli.simulation.limits import find_optimum
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.outputs import check_outputs, write_outputs
from gpu_flows.cli.simulation.results import build_result, raise_failures
from gpu_flows.cli.simulation.running import run_policies
from gpu_flows.cli.simulation.tables import show_results
from gpu_flows.cli.simulation.warehouse import check_warehouse


@examples(
    "gpu-flows simulate --trace jobs.csv --cluster 15x4:V100:16+8x8:A100:80 --policy fifo,srtf --json",
    "gpu-flows simulate --workload poisson:jobs=500 --cluster 3x4 --policy fifo,fifo:skip=true --charts out",
    "gpu-flows simulate --trace ~/.gpu-flows/warehouse.duckdb --cluster 3x4 --policy srtf --jobs-out j.csv",
    "gpu-flows simulate --trace jobs.csv --cluster racks.yaml --network realistic --warehouse sim.duckdb",
)
@accepts(SimulationOptions)
def simulate(options: SimulationOptions, as_json: JsonOption = False) -> None:
    """Run a workload on a simulated cluster, under one or more policies.

    The simulator is the live engine with a simulated clock, and the same seed gives the same result. Times
    are in seconds; percentiles are nearest-rank. Figures are of the jobs that finished; the others are
    listed with their reason. Exit code 1 means that a policy failed or an output could not be written, 2
    that the input is not valid.
    """
    inputs, results, unwritten = run_simulation(options)
    output.print_json(results) if as_json else show_results(inputs, results)
    raise_failures(results, unwritten)


def run_simulation(options: SimulationOptions) -> tuple[Inputs, list[dict[str, Any]], list[str]]:
    """Simulate every policy and write the outputs. Returns the inputs, a result for each policy, and the
    errors of outputs that could not be written, which must not hide the results."""
    check_outputs(options)
    inputs = read_inputs(options)
    for choice in inputs.choices:
        find_optimum(inputs, choice.anywhere)  # raises before the simulation; the result is cached
    with TemporaryDirectory() as spool:
        if options.warehouse:
            check_warehouse(options.warehouse, spool)
        outcomes = run_policies(inputs, spool if options.warehouse else "")
        unwritten = list(write_outputs(inputs, outcomes, spool))
    results = [build_result(inputs, *pair) for pair in zip(inputs.choices, outcomes, strict=True)]
    return inputs, results, unwritten

"""The facts that `--warehouse` writes: spooled by each simulation, then loaded into the DuckDB file."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path

from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.simulation.inputs import Inputs
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.policy_choices import PolicyChoice
from gpu_flows.schedulers.simulation.simulator import Simulation


def spool_facts(inputs: Inputs, choice: PolicyChoice, simulation: Simulation, folder: str) -> None:
    """Write the facts of a simulation into the folder that `load_facts` reads."""
    from gpu_flows.analytics import simulated_facts

    options = inputs.options
    title = options.trace.name.partition(".")[0] if options.trace else options.workload.partition(":")[0]
    experiment = simulated_facts.Experiment.of(title, _describe(options), inputs.trace.arrivals)
    simulated_facts.spool_facts(
        Path(folder), simulated_facts.list_facts(simulation, choice.label, experiment, time.time())
    )


def _describe(options: SimulationOptions) -> dict[str, object]:
    """The options that can affect the result of a policy."""
    ignored = {"policy", "jobs_out", "warehouse", "charts", "processes"}
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    values["trace"] = options.trace.name if options.trace else None
    return {name: value for name, value in values.items() if name not in ignored and value not in (None, "")}


def load_facts(warehouse: Path, spool: str) -> None:
    """Load the spooled facts into the warehouse."""
    from gpu_flows.analytics import simulated_facts
    from gpu_flows.analytics.warehouse import WarehouseError

    try:
        simulated_facts.load_spool(warehouse, Path(spool))
    except WarehouseError as error:
        raise CommandError(error.problem) from None  # no facts wait: the spool here is a temporary folder


def check_warehouse(warehouse: Path, spool: str) -> None:
    """Load an empty spool, to find out whether the file is a warehouse and not in use. Raises BadInput."""
    try:
        load_facts(warehouse, spool)
    except CommandError as error:
        raise BadInput(error.what, "Name another file, or try again.") from None

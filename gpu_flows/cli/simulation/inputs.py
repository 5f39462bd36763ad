"""Everything that a simulation's options name, read and checked: trace, cluster, policies, assumptions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.options import parse_assignments
from gpu_flows.cli.simulation.assumptions import is_profile_file, read_world
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.policy_choices import PolicyChoice, choose_policies, split_at_commas
from gpu_flows.schedulers.cluster import spec as cluster_spec
from gpu_flows.schedulers.model import Node
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.estimates import parse_estimates
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.traces import Trace, formats
from gpu_flows.schedulers.traces import load as load_trace
from gpu_flows.schedulers.traces.alibaba2023 import WHOLE_DEVICE
from gpu_flows.schedulers.traces.alibaba2023 import nodes as alibaba_nodes
from gpu_flows.schedulers.traces.table import first_row
from gpu_flows.schedulers.workload import Arrival, allow_spanning, forget_other_nodes

FORMATS_IN_SHARES = ("alibaba2023", "pai", "pai2020")  # they state thousandths of a GPU as memory


@dataclass(frozen=True, eq=False)
class Inputs:
    options: SimulationOptions
    trace: Trace
    nodes: list[Node]
    conditions: Conditions
    choices: list[PolicyChoice]
    left_out: dict[str, str]  # policy -> why `all` does not include it

    @property
    def in_shares(self) -> bool:
        return _is_in_shares(self.trace)


def read_inputs(options: SimulationOptions) -> Inputs:
    """Read what the options name. Raises BadInput."""
    try:
        parse_estimates(options.estimates)
        nodes = _read_nodes(options.cluster)
        trace = _read_trace(options)
        if _is_in_shares(trace):
            nodes = [_set_whole_device_memory(node) for node in nodes]
        return Inputs(options, trace, nodes, read_world(options, nodes), *choose_policies(options, trace))
    except ValueError as error:  # a TraceError, a PolicyError, or another value that cannot be parsed
        raise BadInput(str(error)) from None


@cache
def select_arrivals(inputs: Inputs, anywhere: bool) -> list[Arrival]:
    """The workload, with the jobs marked that may span nodes. Jobs that require nodes of another cluster
    take any.

    Of the jobs that the trace allows to span nodes, those that fit on one node stay on one, unless the
    policy takes devices anywhere or the options state otherwise.
    """
    span, arrivals = inputs.options.span, forget_other_nodes(inputs.trace.arrivals, inputs.nodes)
    if span:
        return allow_spanning(arrivals, wider_than=1)
    largest = 0 if anywhere else max(len(node.devices) for node in inputs.nodes)
    return [
        replace(arrival, job=replace(arrival.job, may_span_nodes=False))
        if arrival.job.may_span_nodes and (span is False or arrival.job.gpus <= largest)
        else arrival
        for arrival in arrivals
    ]


def _read_nodes(cluster: str) -> list[Node]:
    path = Path(cluster)
    if path.suffix == ".csv":
        return alibaba_nodes(path)
    return cluster_spec.declare(cluster)


def _is_in_shares(trace: Trace) -> bool:
    """Whether jobs ask for parts of a GPU, which are stated as memory of devices with 1000 units."""
    return trace.format in FORMATS_IN_SHARES and any(arrival.job.memory_mb for arrival in trace.arrivals)


def _set_whole_device_memory(node: Node) -> Node:
    return replace(node, devices=tuple(replace(device, memory_mb=WHOLE_DEVICE) for device in node.devices))


def _read_trace(options: SimulationOptions) -> Trace:
    if bool(options.trace) == bool(options.workload):
        raise BadInput("There are no jobs.", "Give either --trace FILE or --workload SPEC.")
    names = "since", "until", "sample", "limit", "scale_load"
    cuts = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.trace is None:
        if cuts:
            raise BadInput(f"--{next(iter(cuts)).replace('_', '-')} is for traces; a workload has options.")
        return Trace(options.workload, "generated", generate(options.workload, options.seed))
    from gpu_flows.analytics import recorded_trace

    name, _, written = options.format.partition(":")
    settings: dict[str, Any] = parse_assignments(split_at_commas(written), f"Format {name!r}: option", str)
    selection = {**cuts, "seed": options.seed}
    if name == recorded_trace.FORMAT or (not name and recorded_trace.is_warehouse(options.trace)):
        unknown = settings.keys() - {"pool", "experiment"}
        if unknown:
            raise BadInput(
                f"Format {recorded_trace.FORMAT} has no option {min(unknown)!r}, but pool and experiment."
            )
        return recorded_trace.load(options.trace, **settings, **selection)
    if is_profile_file(options.profile) and _counts_steps(options.trace, name):
        settings.setdefault("throughputs", options.profile)
    return load_trace(options.trace, name or None, **settings, **selection)


def _counts_steps(trace: Path, name: str) -> bool:
    """Whether durations follow from a table of throughputs, as in Gavel's traces."""
    gavel = formats()["gavel"]
    return name == gavel.name or (
        not name and gavel.column_names(first_row(trace, gavel.delimiter)) is not None
    )

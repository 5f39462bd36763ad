"""The result of each policy as data: the object that `--json` prints, and the errors to report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.simulation.caveats import list_caveats
from gpu_flows.cli.simulation.inputs import Inputs
from gpu_flows.cli.simulation.limits import find_bounds, find_optimum
from gpu_flows.cli.simulation.policy_choices import PolicyChoice
from gpu_flows.cli.simulation.running import Outcome
from gpu_flows.schedulers.model import all_devices

Result = Mapping[str, Any]

FIRST_KEYS = (
    *("policy", "jobs", "finished", "makespan_s", "avg_turnaround_s"),
    *("p50_turnaround_s", "p90_turnaround_s", "p99_turnaround_s", "avg_queueing_s", "utilization_percent"),
    *("preemptions", "lower_bound_makespan_s", "events", "wall_s"),
)
LAST_KEYS = ("ooms", "memory_use_percent", "deadlines", "deadlines_missed")


def build_result(inputs: Inputs, choice: PolicyChoice, outcome: Outcome) -> dict[str, Any]:
    """The result of one policy, with the most important figures first."""
    options = inputs.options
    limit, best = find_bounds(inputs, choice.anywhere), find_optimum(inputs, choice.anywhere)
    figures = asdict(outcome.summary)
    shares = {f"{name}_percent": 100 * figures.pop(name) for name in ("utilization", "allocation", "comm")}
    memory_use = 100 * figures.pop("memory_use")
    shares["memory_use_percent"] = math.nan if inputs.in_shares else memory_use  # shares are no memory
    values = {
        **figures,
        **shares,
        "policy": choice.label,
        "lower_bound_makespan_s": limit.makespan_s,
        "wall_s": outcome.wall_s,
        "lower_bound_turnaround_s": limit.mean_turnaround_s,
        "lower_bound_why": [limit.why_makespan, limit.why_turnaround],
        "optimum_makespan_s": best and best.makespan_s,
        "optimum_turnaround_s": best and best.turnaround_s,
        "optimum_proven": best and best.proven,
        "cpu_s": outcome.cpu_s,
        "cluster": options.cluster,
        "network": inputs.conditions.network and inputs.conditions.network.name,
        "congestion": options.congestion or 1.0,
        "devices": len(all_devices(inputs.nodes)),
        "trace": inputs.trace.source,
        "placement": getattr(choice.make().options, "placement", None),
        "estimates": options.estimates,
        "seed": options.seed,
        "skipped": inputs.trace.skipped,
        "troubles": [
            {key: trouble[key] for key in ("job_id", "outcome", "reason")} for trouble in outcome.troubles
        ],
        "caveats": list(list_caveats(inputs, choice, outcome.summary)),
    }
    between = [key for key in values if key not in FIRST_KEYS + LAST_KEYS]
    return {key: values[key] for key in (*FIRST_KEYS, *between, *LAST_KEYS)}


def raise_failures(results: Sequence[Result], unwritten: Sequence[str]) -> None:
    """Raise an error if an output could not be written or a policy failed. Called after the results are
    printed, so that a failure never hides them."""
    failed = [result for result in results if result["policy_error"]]
    errors, fix = list(unwritten), ""
    if failed:
        names = ", ".join(result["policy"] for result in failed)
        errors.append(f"Policy {names} failed: {failed[0]['policy_error']}")
        fix = "From then on FIFO decided instead, so these figures are not the policy's own."
    if errors:
        raise CommandError("\n".join(errors), fix)

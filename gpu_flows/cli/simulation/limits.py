"""What no policy can beat: the lower bounds, and for a few jobs the best schedule without preemption."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isclose
from typing import get_args

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.simulation.inputs import Inputs, select_arrivals
from gpu_flows.schedulers.simulation.bounds import Bounds, bounds
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.optimum import Objective, optimum
from gpu_flows.schedulers.simulation.profiles import Profile

MOST_FOR_OPTIMUM = 15  # jobs; the search takes too long for more
NO_DIFFERENCE = 1e-6  # relative: a schedule this close to a lower bound has reached it


@dataclass(frozen=True, slots=True)
class BestFound:
    """The best makespan and the best turnaround, each of its own schedule. Better schedules may exist if
    they are not `proven`."""

    makespan_s: float
    turnaround_s: float
    proven: bool


@cache
def find_bounds(inputs: Inputs, anywhere: bool) -> Bounds:
    """The lower bounds of makespan and turnaround."""
    speed = None if inputs.conditions.profile == Profile() else inputs.conditions.profile.speed
    return bounds(select_arrivals(inputs, anywhere), inputs.nodes, speed)


@cache
def find_optimum(inputs: Inputs, anywhere: bool) -> BestFound | None:
    """The best that is possible without preemption, if the options ask for it. Raises BadInput."""
    if not inputs.options.optimum:
        return None
    arrivals = select_arrivals(inputs, anywhere)
    if len(arrivals) > MOST_FOR_OPTIMUM:
        raise BadInput(
            f"--optimum is for up to {MOST_FOR_OPTIMUM} jobs, not {len(arrivals):,}.",
            "Take fewer jobs, for example with --limit, or leave out --optimum.",
        )
    if inputs.conditions != Conditions(seed=inputs.conditions.seed, repair_s=inputs.conditions.repair_s):
        raise BadInput("--optimum knows no profiles, costs or failures; leave those options out.")
    try:
        schedules = {
            objective: optimum(arrivals, inputs.nodes, objective) for objective in get_args(Objective)
        }
    except (ValueError, ImportError, RuntimeError) as error:
        raise BadInput(str(error)) from None
    limit = find_bounds(inputs, anywhere)
    proven = all(
        schedule.proven or isclose(schedule.value, getattr(limit, objective), rel_tol=NO_DIFFERENCE)
        for objective, schedule in schedules.items()
    )
    makespan, turnaround = (schedule.value for schedule in schedules.values())
    return BestFound(makespan, turnaround, proven)

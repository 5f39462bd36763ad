"""The policies that `--policy` names, with their options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.options import parse_assignments, parse_json_or_text
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.schedulers.policy import Policy, make_policy, policies
from gpu_flows.schedulers.traces import Trace


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its options. `label` is how the user wrote it."""

    label: str
    name: str
    options: Mapping[str, Any]

    def make(self) -> Policy:
        return make_policy(self.name, self.options)

    @property
    def anywhere(self) -> bool:
        """Whether it takes devices of any nodes together."""
        return self.options.get("placement") == "any"


def choose_policies(options: SimulationOptions, trace: Trace) -> tuple[list[PolicyChoice], dict[str, str]]:
    """The chosen policies, and the ones that `all` leaves out with the reason."""
    known = policies()
    written = ["fifo"] if options.policy is None else options.policy
    if not all(map(split_at_commas, written)):
        raise BadInput("--policy names no policy.", f"Name some of {', '.join(known)}; or all.")
    labels = split_policies(",".join(written))
    unfit = _find_unfit(options, trace, known) if "all" in labels else {}
    # fifo comes first, as the baseline of the others
    fit = sorted(known.keys() - unfit.keys(), key=lambda name: (name != "fifo", name))
    chosen: dict[str, PolicyChoice] = {}
    for written_label in labels:
        for label in fit if written_label == "all" else [written_label]:
            if label in chosen:
                raise BadInput(f"Policy {label!r} is asked for twice.")
            chosen[label] = _parse_choice(options, label, known)
    return list(chosen.values()), {name: why for name, why in unfit.items() if name not in chosen}


def _parse_choice(options: SimulationOptions, label: str, known: Mapping[str, type[Policy]]) -> PolicyChoice:
    name = label.partition(":")[0]
    accepted = known[name].Options.model_fields if name in known else {}
    given = {option: getattr(options, option) for option in ("placement", "sharing", "seed")}
    return parse_choice(label, {option: given[option] for option in given.keys() & accepted if given[option]})


def parse_choice(label: str, defaults: Mapping[str, Any] | None = None) -> PolicyChoice:
    """Parse `srtf` or `fifo:skip=true,placement=pack`. Raises BadInput or PolicyError."""
    name, _, written = label.partition(":")
    options = parse_assignments(split_at_commas(written), f"Policy {name!r}: option", parse_json_or_text)
    values = {**(defaults or {}), **options}
    if remark := make_policy(name, values).remark:  # figures of another policy would be shown under its name
        raise BadInput(f"Policy {label!r}: {remark}")
    return PolicyChoice(label, name, values)


def _find_unfit(
    options: SimulationOptions, trace: Trace, known: Mapping[str, type[Policy]]
) -> dict[str, str]:
    """The policies that need to know what no job of this workload states, with what that is."""
    jobs = [arrival.job for arrival in trace.arrivals]
    lacking: dict[str, str] = {}
    if options.estimates == "stated" and not any(job.expected_s for job in jobs):
        lacking["expected duration"] = "no job states its expected duration"
    if not any(job.memory_mb for job in jobs):
        lacking["memory bound"] = "no job states its memory"
    if all(job.deadline is None for job in jobs):
        lacking["deadline"] = "no job has a deadline"
    if not any(job.user for job in jobs):
        lacking["user"] = "no job has a user"
    if all(job.least == job.most for job in jobs):
        lacking["speed on more or fewer devices"] = "no job can run on more or fewer devices"
    missing = {name: [need for need in policy.needs if need in lacking] for name, policy in known.items()}
    return {name: " and ".join(lacking[need] for need in needs) for name, needs in missing.items() if needs}


def split_policies(text: str) -> list[str]:
    """Split `a,b:x=1,y=2,c` into three policies: a piece `y=2` belongs to the policy before it."""
    found: list[str] = []
    for piece in split_at_commas(text):
        if found and "=" in piece and ":" not in piece.partition("=")[0]:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def split_at_commas(text: str) -> list[str]:
    """Split at the commas that are not within brackets. Empty pieces are dropped."""
    return [piece.strip() for piece in re.split(r",(?![^\[\]{}]*[\]}])", text) if piece.strip()]

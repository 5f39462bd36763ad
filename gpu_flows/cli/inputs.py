"""What a study means: its trace, its cluster, its world and its policies, read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, get_args

from gpu_flows.cli import parts
from gpu_flows.cli.problem import BadInput
from gpu_flows.cli.study import Study
from gpu_flows.schedulers.cluster import spec as cluster_spec
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.policy import Policy, make_policy, policies
from gpu_flows.schedulers.simulation.bounds import Bounds, bounds
from gpu_flows.schedulers.simulation.estimates import estimates
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.optimum import Objective, optimum
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN, Profile
from gpu_flows.schedulers.simulation.world import Tiers, World
from gpu_flows.schedulers.traces import Trace, formats
from gpu_flows.schedulers.traces import load as load_trace
from gpu_flows.schedulers.traces.alibaba2023 import WHOLE_DEVICE
from gpu_flows.schedulers.traces.alibaba2023 import nodes as alibaba_nodes
from gpu_flows.schedulers.traces.gavel import Throughputs, throughputs
from gpu_flows.schedulers.traces.table import first_row
from gpu_flows.schedulers.workload import Arrival, spanning

MOST_FOR_OPTIMUM = 15  # jobs; more would take for ever
NO_DIFFERENCE = 1e-6  # relative: a schedule so close to a lower bound has reached it
IN_SHARES = ("alibaba2023", "pai", "pai2020")  # formats that tell thousandths of a GPU as memory


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with its options, under the name that it was called by."""

    label: str
    name: str
    options: Mapping[str, Any]

    def make(self) -> Policy:
        return make_policy(self.name, self.options)

    @property
    def anywhere(self) -> bool:
        return self.options.get("placement") == "any"


@dataclass(frozen=True, slots=True)
class Best:
    """Each by a schedule of its own. If not `proven`, there may be better ones still."""

    makespan_s: float
    turnaround_s: float
    proven: bool


@dataclass(frozen=True, eq=False)
class Inputs:
    """A study with everything read that it names."""

    study: Study
    trace: Trace
    nodes: list[Node]
    world: World
    choices: list[Choice]
    left_out: dict[str, str]  # policy -> why `all` does without it

    @property
    def in_shares(self) -> bool:
        return _in_shares(self.trace)


def read(study: Study) -> Inputs:
    """Raises BadInput."""
    try:
        estimates(study.estimates)
        nodes = _nodes(study.cluster)
        trace = _trace(study)
        if _in_shares(trace):
            nodes = [_in_thousandths(node) for node in nodes]
        return Inputs(study, trace, nodes, _world(study, nodes), *_choices(study, trace))
    except ValueError as error:  # a TraceError, a PolicyError, or what else cannot be understood
        raise BadInput(str(error)) from None


@cache
def jobs(found: Inputs, anywhere: bool) -> list[Arrival]:
    """The workload, and who of it may span nodes: of those whom the trace would let, only they who cannot
    do without, unless devices are taken anywhere or the study says otherwise."""
    span = found.study.span
    if span:
        return spanning(found.trace.arrivals, wider_than=1)
    largest = 0 if anywhere else max(len(node.devices) for node in found.nodes)
    return [
        replace(each, job=replace(each.job, may_span_nodes=False))
        if each.job.may_span_nodes and (span is False or each.job.gpus <= largest)
        else each
        for each in found.trace.arrivals
    ]


@cache
def limits(found: Inputs, anywhere: bool) -> Bounds:
    """What no policy can beat."""
    speed = None if found.world.profile == Profile() else found.world.profile.speed
    return bounds(jobs(found, anywhere), found.nodes, speed)


@cache
def best(found: Inputs, anywhere: bool) -> Best | None:
    """The best that is possible without preemption, if the study asks for it. Raises BadInput."""
    if not found.study.optimum:
        return None
    arrivals = jobs(found, anywhere)
    if len(arrivals) > MOST_FOR_OPTIMUM:
        raise BadInput(
            f"--optimum is for up to {MOST_FOR_OPTIMUM} jobs, not {len(arrivals):,}.",
            "Take fewer of them, as by --limit, or leave out --optimum: the lower bound is always there.",
        )
    if found.world != World(seed=found.world.seed, repair_s=found.world.repair_s):
        raise BadInput("--optimum knows no profiles, costs or breakdowns; leave those options out.")
    try:
        schedules = {each: optimum(arrivals, found.nodes, each) for each in get_args(Objective)}
    except (ValueError, ImportError, RuntimeError) as error:
        raise BadInput(str(error)) from None
    limit = limits(found, anywhere)
    proven = all(
        schedule.proven or isclose(schedule.value, getattr(limit, objective), rel_tol=NO_DIFFERENCE)
        for objective, schedule in schedules.items()
    )
    span, turnaround = (schedule.value for schedule in schedules.values())
    return Best(span, turnaround, proven)


# -- policies ---------------------------------------------------------------------------------


def _choices(study: Study, trace: Trace) -> tuple[list[Choice], dict[str, str]]:
    """The policies asked for, and what is missing for those that `all` leaves out."""
    known = policies()
    asked = ["fifo"] if study.policy is None else study.policy
    if not all(map(_pieces, asked)):
        raise BadInput("--policy names no policy.", f"Name some of {', '.join(known)}; or all.")
    specs = _specs(",".join(asked))
    unfit = _unfit(study, trace, known) if "all" in specs else {}
    # fifo is the first of all, to compare the others with
    fit = sorted(known.keys() - unfit.keys(), key=lambda name: (name != "fifo", name))
    chosen: dict[str, Choice] = {}
    for spec in specs:
        for label in fit if spec == "all" else [spec]:
            if label in chosen:
                raise BadInput(f"Policy {label!r} is asked for twice.")
            chosen[label] = _choice(study, label, known)
    return list(chosen.values()), {name: why for name, why in unfit.items() if name not in chosen}


def _choice(study: Study, label: str, known: Mapping[str, type[Policy]]) -> Choice:
    name, _, written = label.partition(":")
    options = parts.assignments(_pieces(written), f"Policy {name!r}: option", parts.json_or_text)
    takes = known[name].Options.model_fields if name in known else {}
    for option in ("placement", "sharing", "seed"):
        said = getattr(study, option)
        if said and option in takes:
            options.setdefault(option, said)
    make_policy(name, options)
    return Choice(label, name, options)


def _unfit(study: Study, trace: Trace, known: Mapping[str, type[Policy]]) -> dict[str, str]:
    """The policies that do not find in this workload what they need to know, and what that is."""
    jobs = [arrival.job for arrival in trace.arrivals]
    lacking: dict[str, str] = {}
    if study.estimates == "stated" and not any(job.expected_s for job in jobs):
        lacking["expected duration"] = "no job states its expected duration"
    if all(job.deadline is None for job in jobs):
        lacking["deadline"] = "no job has a deadline"
    if not any(job.user for job in jobs):
        lacking["user"] = "no job has a user"
    if all(job.least == job.most for job in jobs):
        lacking["speed on more or fewer devices"] = "no job can run on more or fewer devices"
    found = {name: [need for need in each.needs if need in lacking] for name, each in known.items()}
    return {name: " and ".join(lacking[need] for need in needs) for name, needs in found.items() if needs}


def _specs(typed: str) -> list[str]:
    """`a,b:x=1,y=2,c` is three policies: a piece `y=2` belongs to the one before it."""
    found: list[str] = []
    for piece in _pieces(typed):
        if found and "=" in piece and ":" not in piece.partition("=")[0]:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def _pieces(typed: str) -> list[str]:
    """What stands between commas, except for those within brackets."""
    return [piece.strip() for piece in re.split(r",(?![^\[\]{}]*[\]}])", typed) if piece.strip()]


# -- the cluster and its jobs -----------------------------------------------------------------


def _nodes(cluster: str) -> list[Node]:
    path = Path(cluster)
    if path.suffix == ".csv":
        return alibaba_nodes(path)
    return cluster_spec.declare(cluster)


def _in_shares(trace: Trace) -> bool:
    """Whether jobs ask for parts of a GPU, which are told as memory of devices with 1000 units."""
    return trace.format in IN_SHARES and any(arrival.job.memory_mb for arrival in trace.arrivals)


def _in_thousandths(node: Node) -> Node:
    return replace(node, devices=tuple(replace(device, memory_mb=WHOLE_DEVICE) for device in node.devices))


def _trace(study: Study) -> Trace:
    if bool(study.trace) == bool(study.workload):
        raise BadInput("Which jobs?", "Give either --trace FILE or --workload SPEC.")
    names = "since", "until", "sample", "limit", "scale_load"
    cuts = {name: getattr(study, name) for name in names if getattr(study, name) is not None}
    if study.trace is None:
        if cuts:
            raise BadInput(f"--{next(iter(cuts)).replace('_', '-')} is for traces; a workload has options.")
        return Trace(study.workload, "made up", generate(study.workload, study.seed))
    from gpu_flows.analytics import recorded_trace

    name, _, written = study.format.partition(":")
    options: dict[str, Any] = parts.assignments(_pieces(written), f"Format {name!r}: option", str)
    choices = {**cuts, "seed": study.seed}
    if name == recorded_trace.FORMAT or (not name and recorded_trace.is_warehouse(study.trace)):
        unknown = options.keys() - {"pool", "experiment"}
        if unknown:
            raise BadInput(
                f"Format {recorded_trace.FORMAT} has no option {min(unknown)!r}, but pool and experiment."
            )
        return recorded_trace.load(study.trace, **options, **choices)
    if _is_file(study.profile) and _counts_steps(study.trace, name):
        options.setdefault("throughputs", study.profile)
    return load_trace(study.trace, name or None, **options, **choices)


def _is_file(profile: str) -> bool:
    return profile not in ("none", "schedulearn")


def _counts_steps(trace: Path, name: str) -> bool:
    """Whether durations follow from a table of throughputs, as in Gavel's traces."""
    gavel = formats()["gavel"]
    return name == gavel.name or (not name and gavel.names(first_row(trace, gavel.delimiter)) is not None)


# -- the world --------------------------------------------------------------------------------


def _world(study: Study, nodes: Sequence[Node]) -> World:
    checkpoint_s, restart_s, migration_s = _costs(study)
    return World(
        profile=_profile(study, nodes),
        tiers=_tiers(study.tier_slowdown, _slowdowns(study.profile)),
        interference=study.interference,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        migration_s=migration_s,
        checkpoint_every_s=study.checkpoint_every,
        node_mtbf_s=3600 * study.node_mtbf_hours,
        device_mtbf_s=3600 * study.device_mtbf_hours,
        repair_s=3600 * study.repair_hours,
        seed=study.seed,
    )


def _costs(study: Study) -> tuple[float, float, float]:
    """To save a stopped job, to let it go on, and to do so elsewhere: as given, or else as recorded."""
    given = study.checkpoint_seconds, study.restart_seconds, study.migration_seconds
    if study.costs is None:
        return given
    from gpu_flows.analytics.recorded_trace import load_costs

    found = load_costs(study.costs)
    saving, going_on, moving = given
    return saving or found.checkpoint_s, going_on or found.restart_s, moving or found.migration_s


def _tiers(typed: str, kinds: dict[str, tuple[float, float]]) -> Tiers:
    try:
        slowdowns = [float(each) for each in typed.split(",")] if typed else [1.0, 1.0]
    except ValueError:
        slowdowns = []
    if len(slowdowns) != 2 or not all(1 <= each < float("inf") for each in slowdowns):
        raise BadInput(f"--tier-slowdown {typed!r} is not two numbers of at least 1, such as 1.2,1.5.")
    nodes, racks = slowdowns
    return Tiers(nodes, racks, kinds)


def _slowdowns(profile: str) -> dict[str, tuple[float, float]]:
    """How much kinds of jobs suffer from distance, where the profile says so: across nodes, across racks."""
    if not _is_file(profile):
        return {}
    try:
        found = json.loads(Path(profile).read_text(encoding="utf-8")).get("slowdown", {})
        return {str(kind): (float(nodes), float(racks)) for kind, (nodes, racks) in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise BadInput(
            f"The slowdowns of profile {profile} are not understood.",
            'Write {"slowdown": {KIND: [ACROSS_NODES, ACROSS_RACKS]}}.',
        ) from None


def _profile(study: Study, nodes: Sequence[Node]) -> Profile:
    if study.profile == "schedulearn":
        return SCHEDULEARN
    if study.profile == "none":
        return Profile()
    names = {device.model.lower(): device.model for device in all_devices(nodes)}

    def called(model: str) -> str:
        """As the cluster calls it, whatever the case; a table of throughputs may know more models."""
        return names.get(model.lower(), model.lower())

    path = Path(study.profile)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        ours = "throughput" in found
        read = _table(found["throughput"]) if ours else throughputs(found)
        table = {(kind, called(model)): row for (kind, model), row in read.items()}
        reference = called(found.get("reference", "") if ours else _reference(study.format))
    except OSError as error:
        raise BadInput(
            f"Profile {path} cannot be read: {error.strerror}.", "Or: none, schedulearn."
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError):
        raise BadInput(
            f"Profile {path} is no table of throughputs.",
            'Write {"reference": MODEL, "throughput": {KIND: {MODEL: {GPUS: RATE}}}}, or take Gavel\'s.',
        ) from None
    if reference not in {model for _, model in table}:
        raise BadInput(
            f"Profile {path} says nothing of {reference!r}, the model that durations are meant for."
        )
    return Profile(table, reference)


def _table(found: Mapping[str, Any]) -> Throughputs:
    return {
        (kind, model): {int(gpus): float(rate) for gpus, rate in row.items()}
        for kind, models in found.items()
        for model, row in models.items()
    }


def _reference(format: str) -> str:
    written = parts.assignments(_pieces(format.partition(":")[2]), "--format", str)
    return written.get("reference", str(formats()["gavel"].Options.model_fields["reference"].default))

"""What came of a study: as data, with its caveats, and drawn for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_flows.cli import parts
from gpu_flows.cli.inputs import Choice, Inputs, best, jobs, limits
from gpu_flows.cli.problem import Problem, inert
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.simulation.conditions import Tiers
from gpu_flows.schedulers.simulation.summary import IMPOSSIBLE, UNFINISHED, DeviceUse, Floats, Summary
from gpu_flows.schedulers.traces.alibaba2023 import WHOLE_DEVICE

TROUBLES_DRAWN = 5

FIRST_KEYS = (
    *("policy", "jobs", "finished", "makespan_s", "avg_turnaround_s"),
    *("p50_turnaround_s", "p90_turnaround_s", "p99_turnaround_s", "avg_queueing_s", "utilization"),
    *("preemptions", "lower_bound_makespan_s", "events", "wall_s"),
)
LAST_KEYS = ("deadlines", "deadlines_missed")


@dataclass(frozen=True, slots=True)
class Picture:
    """What charts are drawn of; the third is drawn already."""

    turnarounds: Floats
    use: DeviceUse
    gantt: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a simulation: as much as the study has a use for, and easy to send."""

    summary: Summary
    wall_s: float
    cpu_s: float
    troubles: list[dict[str, object]]  # some of the jobs that did not finish
    jobs: list[tuple[Any, ...]]
    picture: Picture | None


def tell(found: Inputs, choice: Choice, outcome: Outcome) -> dict[str, Any]:
    """One policy as data: first the figures that everybody looks for, then the rest."""
    study, limit, optimum = found.study, limits(found, choice.anywhere), best(found, choice.anywhere)
    options = choice.make().options
    every = {
        **asdict(outcome.summary),
        "policy": choice.label,
        "lower_bound_makespan_s": limit.makespan_s,
        "wall_s": outcome.wall_s,
        "lower_bound_turnaround_s": limit.mean_turnaround_s,
        "lower_bound_why": [limit.why_makespan, limit.why_turnaround],
        "optimum_makespan_s": optimum and optimum.makespan_s,
        "optimum_turnaround_s": optimum and optimum.turnaround_s,
        "optimum_proven": optimum and optimum.proven,
        "cpu_s": outcome.cpu_s,
        "cluster": study.cluster,
        "devices": len(all_devices(found.nodes)),
        "trace": found.trace.source,
        "placement": getattr(options, "placement", None),
        "estimates": study.estimates,
        "seed": study.seed,
        "skipped": found.trace.skipped,
        "troubles": [
            {key: each[key] for key in ("job_id", "outcome", "reason")} for each in outcome.troubles
        ],
        "caveats": list(_caveats(found, choice, outcome.summary)),
    }
    between = [key for key in every if key not in FIRST_KEYS + LAST_KEYS]
    return {key: every[key] for key in (*FIRST_KEYS, *between, *LAST_KEYS)}


def _caveats(found: Inputs, choice: Choice, summary: Summary) -> Iterator[str]:
    """What the figures do not show, as far as it matters to what was chosen."""
    study, conditions, policy = found.study, found.conditions, choice.make()
    options = policy.options
    asked = [arrival.job for arrival in jobs(found, choice.anywhere)]
    if summary.policy_error:
        yield "The policy failed, and FIFO served in its stead: these figures are not its own."
    if summary.unfinished:
        yield f"{summary.unfinished:,} jobs never finished; times are those of the others."
    for why, count in found.trace.skipped.items():
        yield f"{count:,} rows of the trace are left out: {why}."
    if "expected duration" in policy.needs:
        yield {
            "oracle": "It is told the true duration of every job, which nobody knows; see --estimates.",
            "stated": "It is told the durations that the trace states; a job without one counts as endless.",
            "learned": "It is told the mean of earlier jobs of the same user, kind and size.",
        }.get(study.estimates, "It is told durations with a random error.")
    if (
        summary.preemptions + summary.moves
        and not conditions.checkpoint_s + conditions.restart_s + conditions.migration_s
    ):
        yield "Stopping and moving jobs costs nothing; see --restart-seconds and --checkpoint-seconds."
    if study.costs:
        yield (
            f"Stopping a job costs {conditions.checkpoint_s:.3g} s, letting it go on "
            f"{conditions.restart_s:.3g} s, on other nodes {conditions.migration_s:.3g} s more: "
            f"as recorded in {study.costs}."
        )
    if len(found.nodes) > 1 and any(job.may_span_nodes for job in asked) and conditions.tiers == Tiers():
        yield "A job spread over nodes is as fast as on one; see --tier-slowdown."
    if study.profile == "none":
        if len({device.model for device in all_devices(found.nodes)}) > 1:
            yield "All GPU models are equally fast; see --profile."
        if any(job.least != job.most for job in asked):
            yield "Twice the devices are twice as fast for jobs that can be resized; see --profile."
    if unknown := _unknown_models(found):
        yield f"The profile says nothing of {unknown}: jobs run there as on {conditions.profile.reference}."
    if found.in_shares:
        yield f"The trace tells shares of a GPU: each device has {WHOLE_DEVICE} units, whatever its memory."
    if getattr(options, "sharing", "") == "shared":
        whole = sum(not job.memory_mb for job in asked)
        if whole:
            yield f"{whole:,} jobs state no memory and get whole devices."
        if not conditions.interference:
            yield "Jobs that share a device do not slow each other down; see --interference."
        yield "Devices are shared by memory alone: nothing measures how busy they are."
    elif found.in_shares:
        yield "A share of a GPU takes a whole one; see --sharing shared."
    elif any(job.memory_mb for job in asked):
        yield "Jobs get whole devices, whatever memory they state; see --sharing."
    if (study.placement and not hasattr(options, "placement")) or (
        study.sharing and not hasattr(options, "sharing")
    ):
        yield "It chooses devices by itself: --placement and --sharing do not apply."
    if all(arrival.utilization == 100 for arrival in found.trace.arrivals):
        yield "Nothing tells how busy jobs keep their devices: a device that is held counts as busy."
    if found.trace.format == "warehouse":
        yield "Which nodes and GPU models jobs insisted on was not recorded: they take any."
    breaks = "" if conditions.node_mtbf_s or conditions.device_mtbf_s else ", and nothing ever breaks"
    yield f"Jobs start the moment they are chosen, without time to launch{breaks}."


def _unknown_models(found: Inputs) -> str:
    """The GPU models that the profile has no speeds for."""
    told = {model for _, model in found.conditions.profile.throughput}
    if not told or "" in told:  # nothing at all, or something that goes for every model
        return ""
    return ", ".join(sorted({device.model for device in all_devices(found.nodes)} - told))


def blame(told: Sequence[Mapping[str, Any]], unwritten: Sequence[str]) -> None:
    """What went wrong is told last, and makes the exit code: what could not be written, and policies
    that failed."""
    failed = [each for each in told if each["policy_error"]]
    wrong, fix = list(unwritten), ""
    if failed:
        names = ", ".join(each["policy"] for each in failed)
        wrong.append(f"Policy {names} failed: {failed[0]['policy_error']}")
        fix = "From then on FIFO served in its stead, so these figures are not its own."
    if wrong:
        raise Problem("\n".join(wrong), fix)


def draw(found: Inputs, told: Sequence[Mapping[str, Any]]) -> None:
    print(
        inert(f"{found.trace} on {found.study.cluster} ({told[0]['devices']:,} devices), times in seconds.")
    )
    print()
    titles = {
        "policy": "policy",
        "finished": "finished",
        "makespan_s": "makespan",
        "avg_turnaround_s": "turnaround",
        "p50_turnaround_s": "p50",
        "p90_turnaround_s": "p90",
        "p99_turnaround_s": "p99",
        "avg_queueing_s": "queueing",
        "utilization": "utilization",
        "preemptions": "preempted",
        **matters(told),
        "wall_s": "took",
    }
    drawn = [[called(each), *(shown(key, each[key]) for key in titles if key != "policy")] for each in told]
    for figures in dict.fromkeys(_limits(each) for each in told):
        for limit in filter(None, figures):
            values = dict(zip(("policy", "makespan_s", "avg_turnaround_s"), limit, strict=True))
            drawn.append([shown(key, values[key]) if key in values else "" for key in titles])
    draw_table(list(titles.values()), drawn)
    draw_left_out(found)
    draw_troubles(told)
    draw_caveats(told)


Limit = tuple[str, float, float]


def _limits(each: Mapping[str, Any]) -> tuple[Limit, Limit | None]:
    """What no policy can beat, and what none can beat that never preempts."""
    bound = ("lower bound", each["lower_bound_makespan_s"], each["lower_bound_turnaround_s"])
    if each["optimum_makespan_s"] is None:
        return bound, None
    label = "optimum" if each["optimum_proven"] else "best found"
    return bound, (f"{label} (no preemption)", each["optimum_makespan_s"], each["optimum_turnaround_s"])


def matters(told: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Figures, with their titles, that are worth a column only where there is something to tell."""
    columns = {"moves": ("moved", "moves"), "deadlines_missed": ("missed", "deadlines")}
    return {key: title for key, (title, reason) in columns.items() if any(each[reason] for each in told)}


def called(each: Mapping[str, Any]) -> str:
    return f"{each['policy']} (failed)" if each["policy_error"] else str(each["policy"])


def shown(key: str, value: Any) -> object:
    """A figure as people read it."""
    if value is None or value != value:
        return None
    if key in ("utilization", "allocation"):
        return f"{100 * value:.1f}%"
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def draw_table(columns: Sequence[str], drawn: Sequence[Sequence[Any]], spare: Collection[str] = ()) -> None:
    """A row for each policy, without the columns that can be spared if it must be; in a narrow terminal
    a column for each, in a very narrow one just lines."""
    turned = list(zip(columns, *drawn, strict=True))
    needed, *fewer = zip(*(column for column in turned if column[0] not in spare), strict=True)
    for heads, body in ((columns, drawn), (needed, fewer), (turned[0], turned[1:])):
        table = parts.table(heads, body, right=heads[1:])
        if parts.fits(table):
            parts.show(table)
            return
    for row in drawn:
        parts.show(parts.lines(*zip(columns, row, strict=True)))
        print()


def draw_left_out(found: Inputs) -> None:
    """The policies that are not among `all`, and why."""
    alike: dict[str, list[str]] = {}
    for name, why in found.left_out.items():
        alike.setdefault(why, []).append(name)
    if alike:
        print()
        told = "; ".join(f"{', '.join(names)} ({why})" for why, names in alike.items())
        print(inert(f"Left out: {told}."))


def draw_troubles(told: Sequence[Mapping[str, Any]]) -> None:
    """The first of the jobs that did not finish; once for policies under which they are the same."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for each in told:
        if each[IMPOSSIBLE] + each[UNFINISHED]:
            alike.setdefault(f"{each[IMPOSSIBLE]} {each[UNFINISHED]} {each['troubles']}", []).append(each)
    for first, *others in alike.values():
        missing = first[IMPOSSIBLE] + first[UNFINISHED]
        whom = ", ".join(each["policy"] for each in (first, *others))
        print()
        print(inert(f"Not finished under {whom}: {missing:,} of {first['jobs']:,} jobs"))
        troubles = first["troubles"][:TROUBLES_DRAWN]
        parts.show(parts.table(["job", "why"], [[job["job_id"], job["reason"]] for job in troubles]))
        if missing > len(troubles):
            print("...  (--jobs-out FILE has them all)")


def draw_caveats(told: Sequence[Mapping[str, Any]]) -> None:
    """Each once, with the policies that it is about unless it is about all of them."""
    print("\nWhat this does not show")
    about: dict[str, list[str]] = {}
    for each in told:
        for caveat in each["caveats"]:
            about.setdefault(caveat, []).append(each["policy"])
    for caveat, names in about.items():
        whom = f"{', '.join(names)}: " if len(names) < len(told) else ""
        print(inert(f"- {whom}{caveat}"))

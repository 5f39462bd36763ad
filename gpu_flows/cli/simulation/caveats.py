"""What a simulation's figures do not show, as far as it matters for the chosen options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpu_flows.cli.simulation.inputs import Inputs, select_arrivals
from gpu_flows.cli.simulation.policy_choices import PolicyChoice
from gpu_flows.schedulers.model import Job, all_devices
from gpu_flows.schedulers.network.network import Network
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.simulation.summary import Summary
from gpu_flows.schedulers.traces.alibaba2023 import WHOLE_DEVICE


def list_caveats(inputs: Inputs, choice: PolicyChoice, summary: Summary) -> Iterator[str]:
    policy = choice.make()
    jobs = [arrival.job for arrival in select_arrivals(inputs, choice.anywhere)]
    yield from _about_jobs(inputs, policy, summary)
    yield from _about_costs(inputs, summary)
    yield from _about_speed(inputs, jobs)
    yield from _about_sharing(inputs, policy, jobs)
    yield from _about_records(inputs)


def _about_jobs(inputs: Inputs, policy: Policy, summary: Summary) -> Iterator[str]:
    """Jobs that the figures leave out, and what the policy knows of the others."""
    if summary.policy_error:
        yield "The policy failed, and FIFO decided instead: these figures are not the policy's own."
    if summary.unfinished:
        yield f"{summary.unfinished:,} jobs never finished; times are those of the others."
    for why, count in inputs.trace.skipped.items():
        rows = "1 row of the trace is" if count == 1 else f"{count:,} rows of the trace are"
        yield f"{rows} left out: {why}."
    if "expected duration" in policy.needs:
        yield {
            "oracle": "It knows the true duration of every job, which no real policy does; see --estimates.",
            "stated": "It knows the durations that the trace states; a job without one counts as endless.",
            "learned": "It expects the median that earlier jobs of like users, kinds and sizes suggest.",
        }.get(inputs.options.estimates, "It knows durations with a random error.")


def _about_costs(inputs: Inputs, summary: Summary) -> Iterator[str]:
    conditions = inputs.conditions
    if (
        summary.preemptions + summary.moves
        and not conditions.checkpoint_s + conditions.restart_s + conditions.migration_s
    ):
        yield "Stopping and moving jobs costs nothing; see --restart-seconds and --checkpoint-seconds."
    if inputs.options.costs:
        yield (
            f"Stopping a job costs {conditions.checkpoint_s:.3g} s, "
            f"restarting it {conditions.restart_s:.3g} s, "
            f"on other nodes {conditions.migration_s:.3g} s more: as recorded in {inputs.options.costs}."
        )


def _about_speed(inputs: Inputs, jobs: Sequence[Job]) -> Iterator[str]:
    conditions = inputs.conditions
    yield from _about_network(inputs, [job for job in jobs if job.may_span_nodes])
    if inputs.options.profile == "none":
        if len({device.model for device in all_devices(inputs.nodes)}) > 1:
            yield "All GPU models are equally fast; see --profile."
        if any(job.least != job.most for job in jobs):
            yield "Twice the devices are twice as fast for jobs that can be resized; see --profile."
    if unknown := _list_unknown_models(inputs):
        yield f"The profile has no speeds for {unknown}: jobs run there as on {conditions.profile.reference}."


def _about_network(inputs: Inputs, jobs: Sequence[Job]) -> Iterator[str]:
    """What the network does to the jobs that may span nodes."""
    network = inputs.conditions.network
    if network is None and len(inputs.nodes) > 1 and jobs:
        yield "A job spread over nodes is as fast as on one; see --network and --tier-slowdown."
    if isinstance(network, Network):
        if network.caveat:
            yield network.caveat
        kinds = Counter(job.kind for job in jobs)
        if unknown := sum(number for kind, number in kinds.items() if not network.models.is_known(kind)):
            yield (
                f"{unknown:,} of {len(jobs):,} jobs that may span nodes are of no kind in network table "
                f"{network.name}: they communicate like {network.models.default}."
            )
        if network.contention and jobs:
            yield "Which jobs send over an uplink at the same time is estimated from what each of them sends."


def _count_unknown_nodes(inputs: Inputs) -> int:
    """How many jobs require nodes that the cluster lacks."""
    asked = sum(bool(arrival.job.nodes) for arrival in inputs.trace.arrivals)
    return asked - sum(bool(arrival.job.nodes) for arrival in select_arrivals(inputs, False))


def _list_unknown_models(inputs: Inputs) -> str:
    """The GPU models that the profile has no speeds for."""
    known = {model for _, model in inputs.conditions.profile.throughput}
    if not known or "" in known:  # no profile, or one that has speeds for any model
        return ""
    return ", ".join(sorted({device.model for device in all_devices(inputs.nodes)} - known))


def _about_sharing(inputs: Inputs, policy: Policy, jobs: Sequence[Job]) -> Iterator[str]:
    options = policy.options
    if inputs.in_shares:
        yield f"The trace states shares of a GPU: each device has {WHOLE_DEVICE} units, whatever its memory."
    if getattr(options, "sharing", "") == "shared" or "memory bound" in policy.needs:
        conditions = inputs.conditions
        whole = sum(not job.memory_mb for job in jobs)
        if whole:
            yield f"{whole:,} jobs state no memory and get whole devices."
        if conditions.pairs:
            yield "Kinds of jobs that were not measured slow each other down like the usual one that was."
        elif not conditions.interference:
            yield "Jobs that share a device do not slow each other down; see --interference."
        if all(not arrival.memory_mb for arrival in inputs.trace.arrivals):
            yield "Every job needs exactly the memory that it states: none runs out of memory."
        if hasattr(options, "sharing"):
            yield "Devices are shared by memory alone: how busy they are is not considered."
    elif inputs.in_shares:
        yield "A share of a GPU takes a whole one; see --sharing shared."
    elif any(job.memory_mb for job in jobs):
        yield "Jobs get whole devices, whatever memory they state; see --sharing."
    ignored = [name for name in ("placement", "sharing") if getattr(inputs.options, name)]
    if any(not hasattr(options, name) for name in ignored):
        yield "It chooses devices by itself: --placement and --sharing do not apply."


def _about_records(inputs: Inputs) -> Iterator[str]:
    conditions = inputs.conditions
    if all(arrival.utilization == 100 for arrival in inputs.trace.arrivals):
        yield "The trace does not state how busy jobs keep their devices: an allocated device counts as busy."
    if inputs.trace.remark:
        yield inputs.trace.remark
    if elsewhere := _count_unknown_nodes(inputs):
        yield f"{elsewhere:,} jobs require nodes that this cluster does not have: they take any."
    failures = "" if conditions.node_mtbf_s or conditions.device_mtbf_s else ", and nothing ever fails"
    yield f"Jobs start the moment they are chosen, without time to launch{failures}."

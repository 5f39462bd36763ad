"""Why a job waits, as a pure function of the state.

Codes are stable. They are checked in this order, so that a job always shows the reason that is least
likely to resolve itself:

impossible   no node could ever hold it (the job is refused)
no_devices   the pool has no usable devices at all
unhealthy    it would fit if unhealthy devices and absent nodes were back
behind       devices it could use are free, but the policy runs another job first
fragmented   enough devices are free, but not on one node
capacity     the devices it needs are busy
"""

from __future__ import annotations

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Reason


def find_refusal(job: Job, cluster: Cluster) -> Reason | None:
    """Return the reason to refuse the job, if no node could ever hold it."""
    if cluster.could_hold(job) or not cluster.nodes:
        return None
    accepted = [sum(job.accepts(state.device) for state in node.devices) for node in cluster.nodes.values()]
    largest, total = max(accepted), sum(accepted)
    if (total if job.may_span_nodes else largest) >= job.gpus:
        return Reason(
            "impossible",
            f"No node with such devices has {_describe_host_request(job)} for it.",
            "Ask for fewer processors or less memory.",
        )
    if not total:
        return Reason(
            "impossible",
            f"No device of the pool is what it asks for ({describe_request(job)}).",
            "Loosen the node, GPU model or memory constraint; `gpu-flows gpus` lists what there is.",
        )
    if not job.may_span_nodes and total >= job.gpus:
        return Reason(
            "impossible",
            f"It needs {describe_request(job)} on one node, and the largest node has {largest} of them.",
            f"Ask for {largest} or fewer, or allow several nodes (may_span_nodes: true).",
        )
    return Reason(
        "impossible",
        f"It needs {describe_request(job)}, and the whole pool has {total} of them.",
        f"Ask for at most {largest}, which one node has, or {total} with may_span_nodes: true.",
    )


class Availability:
    """How many devices the cluster has for a job's request. It explains why jobs with that request wait."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self._job = job
        self._refusal = find_refusal(job, cluster)
        free = [
            sum(1 for s in node.devices if s.fits(job) and job.accepts(s.device))
            if node.has_host_room(job)
            else 0
            for node in cluster
        ]
        usable = [sum(1 for s in node.devices if s.healthy and job.accepts(s.device)) for node in cluster]
        together = sum if job.may_span_nodes else max
        self._best, self._total = max(free, default=0), sum(free)
        self._enough = together([0, *free]) >= job.gpus
        self._enough_when_empty = together([0, *usable]) >= job.gpus
        self._any_device = any(state.healthy for node in cluster for state in node.devices)

    def explain(self, position: int) -> Reason:
        """Return why the job at this position of the queue (from 1) has not started."""
        if self._refusal:
            return self._refusal
        job, total = self._job, self._total
        place = f"{ordinal(position)} in the queue, needs {describe_request(job)}"
        if not self._any_device:
            return Reason(
                "no_devices",
                f"{place}; the pool has no usable device now.",
                "`gpu-flows gpus` shows each device's problem.",
            )
        if not self._enough_when_empty:
            return Reason(
                "unhealthy",
                f"{place}; devices it could use are unhealthy or their node is down.",
                "`gpu-flows gpus` shows each device's problem.",
            )
        if self._enough:
            why = "the policy keeps it waiting" if position == 1 else "jobs before it come first"
            return Reason("behind", f"{place}; {_count_free(total)}, but {why}.")
        on_one_node = "" if job.may_span_nodes else " on one node"
        if total >= job.gpus:
            return Reason(
                "fragmented",
                f"{place}{on_one_node}; {_count_free(total)}, but at most {self._best} on one node.",
                "Allowing several nodes (may_span_nodes: true) would let it start.",
            )
        return Reason("capacity", f"{place}{on_one_node}; {_count_free(total)}.")


def describe_request(job: Job) -> str:
    """Return what the job asks for in words, such as `2 GPUs with 8 GB matching A100 on gpu3`."""
    text = f"{job.gpus} GPU{'s' if job.gpus != 1 else ''}"
    if job.memory_mb:
        text += f" with {job.memory_mb / 1024:.3g} GB"
    if job.models:
        text += f" matching {' or '.join(job.models)}"
    if job.nodes:
        text += f" on {' or '.join(job.nodes)}"
    return text


def _describe_host_request(job: Job) -> str:
    cpus = f"{job.cpus:g} processors" if job.cpus else ""
    ram = f"{job.ram_mb / 1024:.3g} GB of memory" if job.ram_mb else ""
    return " and ".join(filter(None, (cpus, ram)))


def ordinal(number: int) -> str:
    """Return the number in words such as `1st` or `12th`."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _count_free(count: int) -> str:
    return f"{count} such {'is' if count == 1 else 'are'} free"

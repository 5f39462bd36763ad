"""Why a job waits, as a pure function of the state.

Codes are stable. They are checked in this order, so that a job always shows the reason that is least
likely to resolve itself:

impossible   no node could ever hold it (the job is refused)
no_devices   the pool has no usable devices at all
unhealthy    it would fit if drained nodes, unhealthy devices and absent nodes were back
declined     devices it could use were offered to it, and it waits for better placed ones
behind       devices it could use are free, but the policy runs another job first
fragmented   enough devices are free, but not on one node
capacity     the devices it needs are busy

Every code, also those of jobs that may not enter the queue yet, belongs to one of four classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Reason

SEE_DEVICES = "`gpu-flows gpus` shows each device's problem."
SPAN_NODES = "may_span_nodes: true (--span-nodes)"
SEE_TIMERS = "The policy lets jobs wait for near devices; `gpu-flows policy set` chooses it and its timers."
DRAINED = "drained"  # the detail of a node that a user took out of service
NEXT = 20  # places at the head of the queue for which reasons say what may happen next


NEVER_FITS, POLICY, CAPACITY, NOT_EVALUATED = "never_fits", "policy_or_quota", "capacity", "not_evaluated"
_HELD_BY_SOMEONE = ("pool_limit", "queue_limit", "paused", "held", "dependency")
HELD_BACK = {*_HELD_BY_SOMEONE, "predicting"}  # jobs that may not start yet: they have no place in the queue
_CLASSES = {
    **dict.fromkeys(("impossible", "bad_request", "not_allowed"), NEVER_FITS),
    **dict.fromkeys((*_HELD_BY_SOMEONE, "behind", "declined", "suspended", "not_due"), POLICY),
    **dict.fromkeys(("no_devices", "unhealthy", "fragmented", "capacity", "making_room"), CAPACITY),
}


def class_of(code: str) -> str:
    """Return the class of a reason's code: never_fits, policy_or_quota (what someone decided keeps it),
    capacity (devices do), or not_evaluated (nobody has decided about it yet)."""
    return _CLASSES.get(code, NOT_EVALUATED)


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
            f"Ask for {largest} or fewer"
            + (f": {job.one_node}." if job.one_node else f", or allow several nodes: {SPAN_NODES}."),
        )
    return Reason(
        "impossible",
        f"It needs {describe_request(job)}, and the whole pool has {total} of them.",
        f"Ask for at most {largest}"
        + (
            f", which one node has, or {total} with {SPAN_NODES}."
            if total > largest and not job.one_node
            else "."
        ),
    )


def explain_queue(
    jobs: Iterable[Job],
    cluster: Cluster,
    foresee: Callable[[Job], str],
    why_waiting: Callable[[Job], str],
    why_declining: Callable[[Job], str],
) -> Iterator[tuple[Job, Reason]]:
    """Iterate over waiting jobs in their order, with why each of them waits. `foresee` says when devices may
    be released for a job, `why_waiting` why the policy gives it none of the free ones; only the next few
    jobs are asked about. `why_declining` says which offer a job declined, and for which one it waits."""
    availability: dict[object, Availability] = {}  # by request
    for position, job in enumerate(jobs, start=1):
        if job.request not in availability:
            availability[job.request] = Availability(job, cluster)
        outlook, obstacle = (foresee(job), why_waiting(job)) if position <= NEXT else ("", "")
        yield job, availability[job.request].explain(position, outlook, obstacle, why_declining(job))


def count_reasons(jobs: Iterable[Job], cluster: Cluster, has_declined: Callable[[Job], bool]) -> Counter[str]:
    """Count waiting jobs by the code of the reason of each, with one look at the cluster for all that ask for
    the same."""
    codes: dict[object, str] = {}  # by request
    counts: Counter[str] = Counter()
    for job in jobs:
        if (code := codes.get(job.request)) is None:
            code = codes[job.request] = Availability(job, cluster).explain(1).code
        counts["declined" if code == "behind" and has_declined(job) else code] += 1
    return counts


class Availability:
    """How many devices the cluster has for a job's request. It explains why jobs with that request wait."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self._job = job
        self._refusal = find_refusal(job, cluster)
        fitting = [
            (node, sum(1 for s in node.devices if s.fits(job) and job.accepts(s.device))) for node in cluster
        ]
        free = [count if node.has_host_room(job) else 0 for node, count in fitting]
        usable = [sum(1 for s in node.devices if s.healthy and job.accepts(s.device)) for node in cluster]
        together = sum if job.may_span_nodes else max
        self._best, self._total = max(free, default=0), sum(free)
        self._enough = together([0, *free]) >= job.gpus
        self._enough_but_for_host = together([0, *(count for _, count in fitting)]) >= job.gpus
        self._enough_when_empty = together([0, *usable]) >= job.gpus
        away = [f"{node.name} is {node.detail or 'down'}" for node in cluster.nodes.values() if not node.up]
        self._away = f" ({', '.join(away[:3])})" if away else ""
        self._drained = _find_drained(job, cluster, sum(usable))
        self._any_device = any(state.healthy for node in cluster for state in node.devices)
        together_matters = job.gpus > 1 and not job.may_span_nodes
        where = " on one node" if together_matters and not self._enough and self._enough_when_empty else ""
        self._needs = f"needs {describe_request(job)}{where}"

        self._code, self._why, self._fix = self._find_reason()

    def explain(self, position: int, outlook: str = "", obstacle: str = "", declining: str = "") -> Reason:
        """Return why the job at this position of the queue (from 1) has not started. `outlook` says when the
        devices that it needs may be released, `obstacle` why the policy gives it none of the free ones, and
        `declining` which ones it declined, if that is known."""
        if self._refusal:
            return self._refusal
        code, why, fix = self._code, self._why, self._fix
        if code == "behind" and declining:
            code, why, fix = "declined", f"{_count_free(self._total)}, but it {declining}.", SEE_TIMERS
        elif code == "behind" and obstacle:
            why = f"{_count_free(self._total)}, but {obstacle}."
        elif code == "behind" and position == 1:
            why = f"{_count_free(self._total)}, but the policy keeps it waiting."
        if code == "capacity" and outlook:
            why = f"{why} {outlook}"
        return Reason(code, f"{ordinal(position)} in the queue, {self._needs}; {why}", fix)

    def _find_reason(self) -> tuple[str, str, str]:
        """Return code, explanation and help for all jobs with this request."""
        if self._drained and not self._enough_when_empty:
            names, several = ", ".join(self._drained[:3]), len(self._drained) > 1
            why = f"the {'nodes it could use are' if several else 'node it could use is'} drained ({names})."
            return "unhealthy", why, f"`gpu-flows undrain {self._drained[0]}` takes it back into service."
        if not self._any_device:
            return "no_devices", f"the pool has no usable device now{self._away}.", SEE_DEVICES
        if not self._enough_when_empty:
            why = f"devices it could use are unhealthy or their node is down{self._away}."
            return "unhealthy", why, SEE_DEVICES
        free = _count_free(self._total)
        if self._enough:
            fix = "`gpu-flows policy show` describes the policy; `gpu-flows queue` shows who comes first."
            return "behind", f"{free}, but jobs before it come first.", fix
        if self._enough_but_for_host:
            why = f"such are free, but no node with them has {_describe_host_request(self._job)} left."
            fix = "It starts when other jobs have released theirs; one that asks for less can start earlier."
            return "capacity", why, fix
        if self._total >= self._job.gpus:
            fix = f"With {SPAN_NODES} it would fit on several nodes."
            if self._job.one_node:
                fix = f"It starts when one node has enough: {self._job.one_node}."
            return "fragmented", f"{free}, but at most {self._best} on one node.", fix
        return "capacity", f"{free}.", self._help_when_busy()

    def _help_when_busy(self) -> str:
        available = self._total if self._job.may_span_nodes else self._best
        if available:
            return f"With gpus: {available} it would fit on what is free."
        if self._job.models or self._job.nodes:
            return "Accepting more GPU models or nodes would let it use other devices."
        return "It starts when a job ends; `gpu-flows queue --all` shows the running ones."


def _find_drained(job: Job, cluster: Cluster, usable: int) -> list[str]:
    """Return the drained nodes that would have the devices for the job, besides those `usable` on others."""
    counts = {
        node.name: sum(1 for state in node.devices if state.healthy and job.accepts(state.device))
        for node in cluster.nodes.values()
        if not node.up and node.detail == DRAINED
    }
    if job.may_span_nodes:
        return [name for name in counts if counts[name]] if usable + sum(counts.values()) >= job.gpus else []
    return [name for name, count in counts.items() if count >= job.gpus]


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

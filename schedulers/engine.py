"""The engine: every waiting job, every running job, every device, and the only one who allocates.

Two drivers feed it, a live one with the real clock and a simulated one with a heap. They tell it
what happened (submit, started, ended ...) and then call `tick`, which lets the policy plan once
for all of it and returns the actions to carry out. A plan is checked as a whole before anything
moves; a policy that answers nonsense is put aside and FIFO serves until it is swapped.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpu_flows.schedulers.cluster import Cluster
from gpu_flows.schedulers.model import Device, Job, Node, Plan, Reason, Running, Start
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.reasons import Outlook, impossible


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the job's owner that it can never run here, and why."""

    job: Job
    reason: Reason


Action = Start | Refuse


class Engine:
    def __init__(self, nodes: Iterable[Node], policy: Policy) -> None:
        self.cluster = Cluster(nodes)
        self.policy = policy
        self.policy_error = ""  # why the policy was put aside, until it is swapped
        self.running: dict[str, Running] = {}
        self.wake_at: float | None = None
        self._fallback: Policy = Fifo()
        self._waiting: list[Job] = []  # by Job.order
        self._known: dict[str, Job] = {}
        self._unchecked: list[Job] = []  # not yet asked whether the cluster could ever hold them
        self._changed = True

    # -- what happened ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """A job wants to run. The same job again replaces what it asked for while it waits."""
        if job.id in self.running or self._known.get(job.id) == job:
            return
        self.withdraw(job.id)
        insort(self._waiting, job, key=_order)
        self._known[job.id] = job
        self._unchecked.append(job)
        self._changed = True

    def withdraw(self, job_id: str) -> None:
        """A waiting job is gone: cancelled, deleted or paused."""
        job = self._known.pop(job_id, None)
        if job is not None:
            del self._waiting[self._index(job)]
            self._changed = True

    def started(self, job_id: str, now: float, attempt: int) -> None:
        """The launch that `tick` asked for has been carried out."""
        running = self.running[job_id]
        running.since, running.attempt = now, attempt

    def ended(self, job_id: str) -> None:
        """A job let go of its devices: finished, failed, or never came to run."""
        if self.running.pop(job_id, None):
            self.cluster.give_back(job_id)
            self._changed = True

    def requeue(self, job_id: str) -> None:
        """A job lost its devices but still wants to run."""
        running = self.running.get(job_id)
        if running:
            self.ended(job_id)
            self.submit(running.job)

    def adopt(self, job: Job, devices: tuple[Device, ...], since: float, attempt: int) -> bool:
        """A job is found running already, on devices that may be sick or no longer declared.
        False if another job was promised them meanwhile."""
        states = [self.cluster.remember(device) for device in devices]
        if not all(state.has_room(job) for state in states):
            return False
        self.withdraw(job.id)
        held = tuple(state.device for state in states)
        self.cluster.take(job, held)
        self.running[job.id] = Running(job, held, since, attempt, self.policy.name)
        return True

    def swap(self, policy: Policy) -> None:
        """Another policy decides from now on. It sees the whole state; nothing running is touched."""
        self.policy, self.policy_error = policy, ""
        self._changed = True

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Other devices from now on. A job that was accepted and fits nowhere any more waits, and says
        so: a slip in the declaration must not cost it its place."""
        self.cluster.replace(nodes)
        self._changed = True

    def set_node(self, name: str, up: bool, detail: str = "") -> None:
        self.cluster.set_node(name, up, detail)
        self._changed = True

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> bool:
        """A device turned sick or well. Whether that is news."""
        news = self.cluster.set_health(device_id, healthy, detail)
        self._changed |= news
        return news

    def observe(self, utilization: Mapping[str, float]) -> None:
        """How busy devices were measured to be, in percent."""
        for device_id, percent in utilization.items():
            state = self.cluster.devices.get(device_id)
            if state is not None and state.utilization != percent:
                state.utilization = percent
                self._changed = True

    # -- what follows -------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """What to do now. Costs nothing when nothing changed since the last call."""
        if not self._changed and (self.wake_at is None or now < self.wake_at):
            return []
        self._changed, self.wake_at = False, None
        refusals = self._refuse_impossible()
        # A job that asks for no device needs no decision, and policies need not know of it.
        free = [self._begin(Start(job, ()), now) for job in list(self._waiting) if job.gpus == 0]
        if not self._waiting:
            return [*refusals, *free]
        plan = self._plan(now)
        self.wake_at = plan.wake_at
        starts = [self._begin(start, now) for start in plan.starts]
        self._changed = False
        return [*refusals, *free, *starts]

    def _begin(self, start: Start, now: float) -> Start:
        self.withdraw(start.job.id)
        self.cluster.take(start.job, start.devices)
        self.running[start.job.id] = Running(start.job, start.devices, now, policy=self.serving.name)
        return start

    @property
    def serving(self) -> Policy:
        """The policy that really decides: the chosen one, or FIFO in its stead."""
        return self._fallback if self.policy_error else self.policy

    @property
    def waiting(self) -> list[Job]:
        """In arrival order. Read it, do not change it."""
        return self._waiting

    def waits(self, job_id: str) -> bool:
        return job_id in self._known

    def reasons(self, limit: int | None = None) -> Iterator[tuple[Job, Reason]]:
        """Why each of the first `limit` jobs in line waits."""
        outlooks: dict[object, Outlook] = {}  # jobs that ask for the same share one
        for position, job in enumerate(self._waiting[:limit], start=1):
            if job.ask not in outlooks:
                outlooks[job.ask] = Outlook(job, self.cluster)
            yield job, outlooks[job.ask].reason(position)

    # -- inside -------------------------------------------------------------------------------

    def _refuse_impossible(self) -> list[Action]:
        unchecked, self._unchecked = self._unchecked, []
        refusals: list[Action] = []
        for job in unchecked:
            reason = impossible(job, self.cluster)
            if reason and self._known.get(job.id) is job:
                self.withdraw(job.id)
                refusals.append(Refuse(job, reason))
        return refusals

    def _plan(self, now: float) -> Plan:
        state = State(now, self._waiting, self.running, self.cluster)
        if not self.policy_error:
            try:
                return self._checked(self.policy, state)
            except Exception as error:  # whatever a policy does wrong, the pool goes on
                self.policy_error = f"{type(error).__name__}: {error}"
        return self._checked(self._fallback, state)

    def _checked(self, policy: Policy, state: State) -> Plan:
        """The policy's plan, once every move of it was tried in order on the real state."""
        try:
            plan = policy.plan(state)
        finally:
            self.cluster.take_back_all_but(self.running)
        try:
            for start in plan.starts:
                if self._known.get(start.job.id) is not start.job:
                    raise ValueError(f"job {start.job.id} is not waiting")
                objection = self.cluster.objection(start.job, start.devices)
                if objection:
                    raise ValueError(objection)
                self.cluster.take(start.job, start.devices)
        finally:
            self.cluster.take_back_all_but(self.running)
        return plan

    def _index(self, job: Job) -> int:
        return bisect_left(self._waiting, job.order, key=_order)


def _order(job: Job) -> tuple[int, float, str]:
    return job.order

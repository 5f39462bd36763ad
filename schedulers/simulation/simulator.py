"""The simulated driver: the live engine and policies, fed by a heap instead of a clock.

    arrivals, ends, failures, wake-ups --> engine.tick --> starts, preemptions, refusals
              ^                                                     |
              +---------------- the world says how long ------------+

Everything that happens at one moment is told to the engine before it plans: first what ends, then
what breaks or comes back, then what arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gpu_flows.schedulers.engine import Engine, Refuse
from gpu_flows.schedulers.model import Device, Node, Preempt, Reason, Running, Start
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.simulation.estimates import Estimates, Oracle
from gpu_flows.schedulers.simulation.world import Breakdown, World
from gpu_flows.schedulers.workload import Arrival

QUIET = 5_000  # events in a row in which no job comes or ends: time to see whether any gets further


@dataclass(slots=True)
class Attempt:
    """One stretch of a job on devices."""

    job_id: str
    number: int
    started: float
    ended: float
    devices: tuple[Device, ...]
    outcome: str  # completed, preempted or lost


@dataclass(slots=True)
class JobResult:
    """What became of one job."""

    arrival: Arrival
    started: float | None = None  # first of all attempts
    ended: float | None = None
    ran_s: float = 0.0
    attempts: int = 0
    devices: tuple[Device, ...] = ()  # of the last attempt
    trouble: Reason | None = None  # why it never ended

    @property
    def turnaround_s(self) -> float:
        return math.nan if self.ended is None else self.ended - self.arrival.job.submitted

    @property
    def queueing_s(self) -> float:
        return self.turnaround_s - self.ran_s


@dataclass(slots=True)
class Simulation:
    """A finished run."""

    policy: str
    nodes: Sequence[Node]
    jobs: list[JobResult]
    attempts: list[Attempt] = field(default_factory=list)
    decisions: int = 0
    preemptions: int = 0  # attempts that were stopped and had to wait
    moves: int = 0  # attempts that were stopped and went on elsewhere, or with another size, at once
    losses: int = 0  # attempts that broke down with their node or device
    policy_error: str = ""


def simulate(
    arrivals: Iterable[Arrival],
    nodes: Sequence[Node],
    policy: Policy,
    world: World | None = None,
    estimates: Estimates | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run the workload under the policy. `progress` hears how many jobs have ended, now and then."""
    return _Run(arrivals, nodes, policy, world or World(), estimates or Oracle(), progress).run()


class _Run:
    def __init__(
        self,
        arrivals: Iterable[Arrival],
        nodes: Sequence[Node],
        policy: Policy,
        world: World,
        estimates: Estimates,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._arrivals = sorted(arrivals, key=lambda each: (each.job.submitted, each.job.order))
        self._world, self._estimates, self._progress = world, estimates, progress
        self._plain = world.is_plain
        self._engine = Engine(nodes, policy, can_preempt=True, speed=world.profile.speed)
        self._results = {each.job.id: JobResult(each) for each in self._arrivals}
        if len(self._results) != len(self._arrivals):
            raise ValueError("The workload names a job twice; every job needs an id of its own.")
        self._found = Simulation(policy.name, nodes, list(self._results.values()))
        self._ends: list[tuple[float, int, str, Running]] = []
        self._due: dict[str, float] = {}  # job id -> when it will end as things stand
        self._pushed = 0
        self._ended = 0
        self._unsaved: set[str] = set()  # whose last attempt broke down
        self._furthest: dict[str, float] = {}  # how much of it a job ever had done, when last looked at

    def run(self) -> Simulation:
        engine, arrivals, ends = self._engine, self._arrivals, self._ends
        breakdowns = self._world.breakdowns(self._found.nodes)
        next_arrival, quiet, ended, endless = 0, 0, 0, False
        while True:
            arrival_at = arrivals[next_arrival].job.submitted if next_arrival < len(arrivals) else math.inf
            now = min(arrival_at, self._next_end())
            if engine.wake_at is not None:
                now = min(now, engine.wake_at)
            if breakdowns and (next_arrival < len(arrivals) or not engine.is_idle):
                now = min(now, breakdowns.next_at)
            if now == math.inf:
                break
            while ends and ends[0][0] == now:
                self._end(*heappop(ends))
            if breakdowns and breakdowns.next_at <= now:
                self._break(now, breakdowns.pop())
            while next_arrival < len(arrivals) and arrivals[next_arrival].job.submitted == now:
                engine.submit(self._estimates.known(arrivals[next_arrival]))
                next_arrival += 1
            actions = engine.tick(now)
            self._found.decisions += 1
            for action in actions:
                if isinstance(action, Start):
                    self._start(action, now)
                elif isinstance(action, Preempt):
                    self._close(action.running, now, "preempted")
                else:
                    self._refuse(action)
            quiet = quiet + 1 if next_arrival == len(arrivals) and self._ended == ended else 0
            ended = self._ended
            endless = quiet > 0 and quiet % QUIET == 0 and not self._gets_further(now)
            if endless:
                break
        self._report_unfinished(endless)
        self._found.policy_error = engine.policy_error
        return self._found

    # -- what happens -------------------------------------------------------------------------

    def _start(self, start: Start, now: float) -> None:
        job = start.job
        running = self._engine.running[job.id]
        result = self._results[job.id]
        before, result.devices = result.devices, start.devices
        result.attempts += 1
        if result.started is None:
            result.started = now
        world = self._world
        if not self._plain or len(start.devices) != job.gpus:
            pause = world.pause_s(before, start.devices, job.id not in self._unsaved)
            self._unsaved.discard(job.id)
            self._engine.set_rate(job.id, now, world.rate(job, start.devices, self._engine), pause)
            self._repace_neighbours(running, now)
        self._expect_end(running)

    def _expect_end(self, running: Running) -> None:
        job_id = running.job.id
        left = self._results[job_id].arrival.duration_s - running.before.work_s - running.worked_s
        end = running.rated + max(0.0, left) / running.rate if running.rate else math.inf
        self._due[job_id] = end
        if end < math.inf:
            self._pushed += 1
            heappush(self._ends, (end, self._pushed, job_id, running))

    def _next_end(self) -> float:
        """When the next job ends. Entries that something overtook are dropped on the way."""
        ends, running = self._ends, self._engine.running
        while ends:
            end, _, job_id, entry = ends[0]
            if running.get(job_id) is entry and self._due[job_id] == end:
                return end
            heappop(ends)
        return math.inf

    def _end(self, now: float, _: int, job_id: str, running: Running) -> None:
        if self._engine.running.get(job_id) is not running or self._due[job_id] != now:
            return
        self._engine.ended(job_id)
        result = self._results[job_id]
        result.ended = now
        self._close(running, now, "completed")
        self._estimates.learn(result.arrival)
        self._ended += 1
        if self._progress and self._ended % 256 == 0:
            self._progress(self._ended)

    def _close(self, running: Running, now: float, outcome: str) -> None:
        job_id = running.job.id
        self._results[job_id].ran_s += now - running.since
        if outcome == "preempted":
            # The engine has it back in line, or on other devices already.
            moves = job_id in self._engine.running
            self._found.moves += moves
            self._found.preemptions += not moves
        attempt = Attempt(job_id, running.attempt, running.since, now, running.devices, outcome)
        self._found.attempts.append(attempt)
        if not self._plain:
            self._repace_neighbours(running, now)

    def _refuse(self, refusal: Refuse) -> None:
        self._results[refusal.job.id].trouble = refusal.reason

    def _break(self, now: float, breakdown: Breakdown) -> None:
        """A node or device goes, with the jobs on it, or comes back."""
        engine = self._engine
        if breakdown.device:
            engine.set_health(breakdown.device, breakdown.back, "" if breakdown.back else "it broke down")
        else:
            engine.set_node(breakdown.node, breakdown.back, "" if breakdown.back else "it broke down")
        if breakdown.back:
            return
        for running in list(engine.running.values()):
            if any(breakdown.hits(device) for device in running.devices):
                self._found.losses += 1
                self._unsaved.add(running.job.id)
                progress = self._world.kept(running, now)
                engine.requeue(running.job.id, progress)
                self._close(running, now, "lost")

    def _repace_neighbours(self, running: Running, now: float) -> None:
        """Who shares a device with this job goes faster or slower from now on."""
        engine = self._engine
        neighbours = {
            holder
            for device in running.devices
            for holder in engine.cluster.devices[device.id].holders
            if holder != running.job.id
        }
        for job_id in sorted(neighbours):
            other = engine.running[job_id]
            rate = self._world.rate(other.job, other.devices, engine)
            if rate != other.rate:
                engine.set_rate(job_id, now, rate, max(0.0, other.rated - now))
                self._expect_end(other)

    def _report_unfinished(self, endless: bool) -> None:
        """Whoever is left says why: no job is dropped in silence."""
        never = Reason(
            "endless", "It would never end: nobody who runs gets any further, or all of it is lost."
        )
        for job, reason in self._engine.reasons():
            self._results[job.id].trouble = never if endless else reason
        for job_id in self._engine.running:
            self._results[job_id].trouble = never

    def _gets_further(self, now: float) -> bool:
        """Whether any running job has more of it done than it ever had when this was asked."""
        further = False
        for job_id, running in self._engine.running.items():
            done = running.work(now)
            if done > self._furthest.get(job_id, 0.0):
                self._furthest[job_id], further = done, True
        return further

"""A dispatcher among actors: a runtime whose processes end when the test says so, a gateway that follows the
same rules as Prefect's, and a clock that stands still unless it is moved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.gateway import Unreachable
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Plan, Reason, Start
from gpu_flows.schedulers.policy import Policy, State, make_policy
from gpu_flows.schedulers.protection import UNPROTECTED, Protection


class FakeRuntime:
    """The runtime. It outlives dispatchers, as processes outlive workers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.live: dict[str, Attempt] = {}  # by job id
        self.exits: dict[str, asyncio.Future[int | None]] = {}  # by attempt
        self.asked: list[tuple[str, Intent]] = []  # by attempt, each time somebody was asked to stop
        self.launched: list[str] = []  # attempts, in order
        self.unforgotten: dict[str, Found] = {}
        self.curtain: asyncio.Event | None = None  # launches wait for it

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        if self.curtain:
            await self.curtain.wait()
        assert launch.job.id not in self.live, "a job never has two live attempts"
        held = {device.id: job_id for job_id, it in self.live.items() for device in it.launch.devices}
        taken = [device.id for device in launch.devices if device.id in held]
        assert not taken, f"{launch.id} was launched on {taken}, which {held} still hold"
        attempt = Attempt(launch, f"here:{launch.id}", self.now)
        self.live[launch.job.id] = attempt
        self.launched.append(launch.id)
        self.unforgotten[launch.id] = Found(launch, attempt, alive=True)
        self.exits[launch.id] = asyncio.get_running_loop().create_future()
        return attempt

    async def wait(self, attempt: Attempt) -> End:
        return End(await asyncio.shield(self.exits[attempt.launch.id]))

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        if attempt.launch.job.id in self.live:
            self.asked.append((attempt.launch.id, intent))

    async def find(self) -> list[Found]:
        return [
            Found(found.launch, found.attempt, found.launch.job.id in self.live)
            for found in self.unforgotten.values()
        ]

    def forget(self, launch: Launch) -> None:
        self.unforgotten.pop(launch.id, None)

    def sample_activity(self) -> dict[str, float]:
        return {}

    def exit(self, job_id: str, code: int | None) -> None:
        """The job's process ends."""
        attempt = self.live.pop(job_id)
        self.exits[attempt.launch.id].set_result(code)


class FakeGateway:
    """The gateway, with a server's memory of each run. Jobs are bare commands to it."""

    def __init__(self, runtime: FakeRuntime, folder: Path) -> None:
        self.runtime, self.folder = runtime, folder
        self.states: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.reachable = True
        self.window: asyncio.Event | None = None  # claims wait for it

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        if self.window:
            await self.window.wait()
        if not self.reachable:
            raise Unreachable("nobody there")
        job = start.job
        if self.states.get(job.id, "waiting") != "waiting":
            return None
        self.states[job.id] = "claimed"
        checkpoints = self.folder / job.id
        checkpoints.mkdir(exist_ok=True)
        number = 1 + sum(name.rpartition(".")[0] == job.id for name in self.runtime.launched)
        command = ("true",)
        return Launch(
            job,
            number,
            "pool",
            policy,
            planned,
            start.devices,
            command,
            handles_intents=False,
            checkpoints=str(checkpoints),
        )

    async def launched(self, attempt: Attempt) -> bool:
        return True

    async def ended(self, launch: Launch, end: End, intent: Intent | None, why: str = "") -> tuple[str, str]:
        job_id = launch.job.id
        if self.states[job_id] == "cancelling" or intent == "cancel":
            outcome = "cancelled"
        elif end.exit_code == 0:
            outcome = "completed"
        elif intent == "reschedule":
            outcome = "preempted"
        else:
            outcome = "failed"
        self.states[job_id] = "waiting" if outcome == "preempted" else outcome
        self.notes[job_id] = why
        return outcome, why

    async def never_launched(self, job: Job, why: str) -> None:
        self.states[job.id] = "waiting"

    async def cancelled(self, job: Job) -> None:
        self.states[job.id] = "cancelled"

    async def failed_to_launch(self, job: Job, why: str) -> None:
        self.states[job.id] = "crashed"

    async def refuse(self, job: Job, reason: Reason) -> None:
        self.states[job.id] = "refused"


class Scripted(Policy):
    """Does what the test says, once; then starts whatever fits, as FIFO would."""

    name = "scripted"
    preempts = True
    moves_running = True

    def __init__(self) -> None:
        super().__init__()
        self.script: Callable[[State], None] | None = None

    def plan(self, state: State) -> Plan:
        if self.script:
            script, self.script = self.script, None
            script(state)
        for job in list(state.waiting):
            free = [s.device for n in state.cluster for s in n.devices if not s.holders and s.healthy]
            here = [device for device in free if job.accepts(device)]
            for node in dict.fromkeys(device.node for device in here):
                chosen = tuple(device for device in here if device.node == node)[: job.gpus]
                if len(chosen) == job.gpus:
                    state.draft.start(job, chosen)
                    break
        return state.draft.plan()


class Stage:
    """Everything in its place. Make it inside a running loop."""

    def __init__(
        self,
        folder: Path,
        cluster: str = "1x4",
        policy: Policy | None = None,
        protection: Protection = UNPROTECTED,
        runtime: FakeRuntime | None = None,
        gateway: FakeGateway | None = None,
    ) -> None:
        self.runtime = runtime or FakeRuntime()
        checkpoints = folder / "checkpoints"
        self.job_store = JobStore(folder, lambda: self.runtime.now)
        self.gateway = gateway or FakeGateway(self.runtime, checkpoints)
        self.policy = policy or make_policy("priority")
        self.engine = Engine(declare(cluster), self.policy, can_preempt=True, protection=protection)
        self.facts: list[Any] = []
        self.dispatcher = Dispatcher(
            "pool",
            self.engine,
            self.runtime,
            self.gateway,
            self.job_store,
            lambda *facts: self.facts.extend(facts),
            logging.getLogger(__name__),
            clock=lambda: self.runtime.now,
        )
        self.dispatcher.active = True

    def submit(self, job_id: str, gpus: int = 1, priority: int = 0, **more: Any) -> None:
        self.gateway.states.setdefault(job_id, "waiting")
        job = Job(job_id, self.runtime.now, gpus, name=job_id, priority=priority, **more)
        self.dispatcher.submit(job)

    def cancel(self, job_id: str) -> None:
        """As the service does it: what the server says of the run changes first."""
        if self.gateway.states[job_id] == "claimed":
            self.gateway.states[job_id] = "cancelling"
        else:
            self.gateway.states[job_id] = "cancelled"
        self.dispatcher.cancel(job_id)

    async def until(self, holds: Callable[[], object], what: str) -> None:
        for _ in range(5000):
            if holds():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"never so: {what}")

    async def running(self, *job_ids: str) -> None:
        """These jobs run, and no others."""
        await self.until(
            lambda: set(self.runtime.live) == set(job_ids), f"{job_ids}, not {[*self.runtime.live]}"
        )

    async def asked(self, *job_ids: str) -> None:
        """These jobs have been asked to leave."""
        await self.until(
            lambda: {name.rpartition(".")[0] for name, _ in self.runtime.asked} >= set(job_ids),
            f"{job_ids} asked",
        )

    async def settle(self) -> None:
        """Long enough for anything to happen that could."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    def outcomes(self, job_id: str) -> list[str]:
        """How each of its attempts ended, as recorded."""
        ends = [fact for fact in self.facts if fact.table == "attempt_ends" and fact.job_id == job_id]
        return [fact.outcome for fact in sorted(ends, key=lambda fact: fact.attempt)]

    def ends(self) -> dict[str, str]:
        return {fact.job_id: fact.outcome for fact in self.facts if fact.table == "job_ends"}

    def waiting(self) -> set[str]:
        return {job.id for job in self.engine.waiting}

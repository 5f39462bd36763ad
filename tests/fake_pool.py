"""A dispatcher with a fake runtime, gateway and clock. The test decides when attempts end and time passes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec
from unittest import mock

from fake_lease import FakeLease

from gpu_flows.checkpoints.contract import CHECKPOINTED
from gpu_flows.dispatch import execution_runner
from gpu_flows.dispatch.attempt_facts import EndedAttempt
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.dispatch.gateway import Unreachable
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.runtimes.base import Attempt, Container, End, Found, Intent, Launch, LaunchCancelled
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Reason, Start
from gpu_flows.schedulers.policy import Policy, State, make_policy
from gpu_flows.schedulers.protection import UNPROTECTED, Protection

P = ParamSpec("P")


def in_event_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in an event loop, with the dispatcher's pauses set to zero."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with mock.patch.multiple(execution_runner, REPORT_DELAY_S=0.0, PAUSE_WHEN_UNREACHABLE_S=0.0):
            asyncio.run(test(*args, **kwargs))

    return run


async def happens(condition: Callable[[], object], patience_s: float = 60.0) -> bool:
    """Wait until the condition holds. The time limit only has to be long enough for a slow machine."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while not condition():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(0.001)
    return True


class FakeRuntime:
    """A runtime without processes. It can be shared by several dispatchers, as processes outlive workers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.live: dict[str, Attempt] = {}  # by job id
        self.exits: dict[str, asyncio.Future[int | None]] = {}  # by attempt id
        self.tails: dict[str, str] = {}  # the last lines of the output, by attempt id
        self.shares: dict[str, int] = {}  # the memory share of each launch, by attempt id
        self.stop_requests: list[tuple[str, Intent]] = []  # attempt id and intent, in order
        self.launched: list[str] = []  # attempt ids, in order
        self.start_before: list[float] = []  # of each launch
        self.known: dict[str, Found] = {}  # every attempt that has not been forgotten
        self.launch_gate: asyncio.Event | None = None  # launches wait for it
        self.printed: dict[str, list[str]] = {}  # by attempt id; what `read_output` returns next
        self.is_careful = False  # it asks at the last moment whether the launch is still wanted

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        if self.launch_gate:
            await self.launch_gate.wait()
        if self.is_careful and not still_wanted():
            raise LaunchCancelled("not wanted any more")
        self.start_before.append(launch.start_before)
        self.shares[launch.id] = launch.memory_share_mb
        assert launch.job.id not in self.live, "a job never has two live attempts"
        held = {device.id: job_id for job_id, other in self.live.items() for device in other.launch.devices}
        taken = [device.id for device in launch.devices if device.id in held and not launch.memory_share_mb]
        assert not taken, f"{launch.id} was launched on {taken}, which {held} still hold"
        attempt = Attempt(launch, f"here:{launch.id}", self.now)
        self.live[launch.job.id] = attempt
        self.launched.append(launch.id)
        self.known[launch.id] = Found(launch, attempt, alive=True)
        self.exits[launch.id] = asyncio.get_running_loop().create_future()
        return attempt

    async def wait(self, attempt: Attempt) -> End:
        name = attempt.launch.id
        return End(await asyncio.shield(self.exits[name]), tail=self.tails.get(name, ""))

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        if attempt.launch.job.id in self.live:
            self.stop_requests.append((attempt.launch.id, intent))

    async def find(self) -> list[Found]:
        return [
            Found(found.launch, found.attempt, found.launch.job.id in self.live)
            for found in self.known.values()
        ]

    def forget(self, launch: Launch) -> None:
        self.known.pop(launch.id, None)

    def read_output(self, launch: Launch) -> list[str]:
        return self.printed.pop(launch.id, [])

    def sample_activity(self) -> dict[str, float]:
        return {}

    def exit(self, job_id: str, code: int | None, tail: str = "") -> None:
        """End the job's live attempt with this exit code, after these last lines of output."""
        attempt = self.live.pop(job_id)
        self.tails[attempt.launch.id] = tail
        self.exits[attempt.launch.id].set_result(code)


class FakeGateway:
    """A gateway that keeps the state of each run as Prefect's server would. Jobs are plain commands."""

    def __init__(self, runtime: FakeRuntime, folder: Path) -> None:
        self.runtime, self.folder = runtime, folder
        self.states: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.reachable = True
        self.claim_gate: asyncio.Event | None = None  # claims wait for it
        self.container: Container | None = None  # jobs run in it
        self.handles_intents = False  # whether jobs are flows
        self.told: dict[str, list[str]] = {}  # lines in the jobs' logs

    def tell(self, job: Job, text: str) -> None:
        self.told.setdefault(job.id, []).append(text)

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        if self.claim_gate:
            await self.claim_gate.wait()
        if not self.reachable:
            raise Unreachable("the server does not answer")
        job = start.job
        if self.states.get(job.id, "waiting") != "waiting":
            return None
        self.states[job.id] = "claimed"
        checkpoints = self.folder / job.id
        checkpoints.mkdir(exist_ok=True)
        number = 1 + sum(name.rpartition(".")[0] == job.id for name in self.runtime.launched)
        return Launch(
            job,
            number,
            "pool",
            policy,
            planned,
            start.devices,
            command=("true",),
            handles_intents=self.handles_intents,
            checkpoints=str(checkpoints),
            container=self.container,
        )

    async def release(self, job: Job, why: str) -> None:
        self.states[job.id] = "waiting"

    async def report_launch(self, attempt: Attempt) -> bool:
        return True

    async def report_end(
        self, launch: Launch, end: End, intent: Intent | None, why: str = "", out_of_memory: bool = False
    ) -> tuple[str, str]:
        job_id = launch.job.id
        if self.states[job_id] == "cancelling" or intent == "cancel":
            outcome = "cancelled"
        elif end.exit_code == 0:
            outcome = "completed"
        elif intent == "reschedule" or out_of_memory:
            outcome = "preempted"
        else:
            outcome = "failed"
        self.states[job_id] = "waiting" if outcome == "preempted" else outcome
        self.messages[job_id] = why
        return outcome, why

    async def report_launch_failure(self, job: Job, why: str) -> None:
        self.states[job.id] = "crashed"

    async def report_cancelled(self, job: Job) -> None:
        self.states[job.id] = "cancelled"

    async def refuse(self, job: Job, reason: Reason) -> None:
        self.states[job.id] = "refused"


class ScriptedPolicy(Policy):
    """Makes one plan with the test's script. All other plans start whatever fits, in FIFO order."""

    name = "scripted"
    preempts = True
    moves_running = True

    def __init__(self) -> None:
        super().__init__()
        self.script: Callable[[State], None] | None = None

    def plan(self, state: State) -> None:
        if self.script:
            script, self.script = self.script, None
            script(state)
        for job in list(state.waiting):
            free = [
                device.device
                for node in state.cluster
                for device in node.devices
                if not device.holders and device.healthy and job.accepts(device.device)
            ]
            for node in dict.fromkeys(device.node for device in free):
                chosen = tuple(device for device in free if device.node == node)[: job.gpus]
                if len(chosen) == job.gpus:
                    state.draft.start(job, chosen)
                    break


class FakePool:
    """A dispatcher with its fakes. Create it inside a running event loop."""

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
        self.job_store = JobStore(folder, lambda: self.runtime.now)
        self.gateway = gateway or FakeGateway(self.runtime, folder / "checkpoints")
        self.policy = policy or make_policy("priority")
        self.engine = Engine(declare(cluster), self.policy, can_preempt=True, protection=protection)
        self.facts: list[Any] = []
        self.ended: list[EndedAttempt] = []
        self.lease = FakeLease()
        self.dispatcher = Dispatcher(
            "pool",
            self.engine,
            self.runtime,
            self.gateway,
            self.job_store,
            lambda *facts: self.facts.extend(facts),
            logging.getLogger(__name__),
            clock=lambda: self.runtime.now,
            lease=self.lease,
            on_attempt_end=self.ended.append,
        )
        self.dispatcher.active = True

    # -- actions ------------------------------------------------------------------------------

    def submit(self, job_id: str, gpus: int = 1, priority: int = 0, **more: Any) -> None:
        self.gateway.states.setdefault(job_id, "waiting")
        job = Job(job_id, self.runtime.now, gpus, name=job_id, priority=priority, **more)
        self.dispatcher.submit(job)

    def cancel(self, job_id: str) -> None:
        """Cancel as in production: the state on the server changes first."""
        if self.gateway.states[job_id] == "claimed":
            self.gateway.states[job_id] = "cancelling"
        else:
            self.gateway.states[job_id] = "cancelled"
        self.dispatcher.cancel(job_id)

    def save_and_stop(self, *job_ids: str) -> None:
        """End these jobs' attempts with the exit code that means "saved and stopped"."""
        for job_id in job_ids:
            self.runtime.exit(job_id, CHECKPOINTED)

    # -- waiting ------------------------------------------------------------------------------

    async def wait_for(self, condition: Callable[[], object], what: str) -> None:
        assert await happens(condition), f"never happened: {what}; {[*self.runtime.live]} run"

    async def wait_for_running(self, *job_ids: str) -> None:
        """Wait until exactly these jobs run."""
        await self.wait_for(lambda: set(self.runtime.live) == set(job_ids), f"{job_ids} run")

    async def wait_for_stop_request(self, *job_ids: str) -> None:
        """Wait until each of these jobs has been asked to stop."""
        await self.wait_for(
            lambda: {name.rpartition(".")[0] for name, _ in self.runtime.stop_requests} >= set(job_ids),
            f"{job_ids} are asked to stop",
        )

    async def wait_for_outcomes(self, job_id: str, *outcomes: str) -> None:
        """Wait until these outcomes of the job's attempts are recorded. The gateway is told of an end before
        it is recorded."""
        await self.wait_for(lambda: self.outcomes(job_id) == [*outcomes], f"{job_id} ended as {outcomes}")

    async def settle(self) -> None:
        """Give every task time to do what it can without a thread. What needs a thread is waited for."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    # -- results ------------------------------------------------------------------------------

    def outcomes(self, job_id: str) -> list[str]:
        """The recorded outcome of each of the job's attempts."""
        ends = [fact for fact in self.facts if fact.table == "attempt_ends" and fact.job_id == job_id]
        return [fact.outcome for fact in sorted(ends, key=lambda fact: fact.attempt)]

    def job_ends(self) -> dict[str, str]:
        """The recorded outcome of each job that has ended."""
        return {fact.job_id: fact.outcome for fact in self.facts if fact.table == "job_ends"}

    def waiting(self) -> set[str]:
        return {job.id for job in self.engine.waiting}


async def preempt_two_jobs(folder: Path) -> FakePool:
    """Return a pool in which two jobs fill the only node and are asked to stop for an urgent job."""
    pool = FakePool(folder)
    pool.submit("a", 2)
    pool.submit("b", 2)
    await pool.wait_for_running("a", "b")
    pool.runtime.now += 10
    pool.submit("urgent", 4, priority=1000)
    await pool.wait_for_stop_request("a", "b")
    return pool

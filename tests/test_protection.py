"""Protection: the engine keeps policies from preempting protected jobs, and lets them check beforehand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_flows.prefect_api.job_builder import job_from_variables, read_variables
from gpu_flows.prefect_api.job_variables import BadJobVariables
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Progress, Start
from gpu_flows.schedulers.policy import Policy, State, make_policy, policies
from gpu_flows.schedulers.protection import Protection

FOR_A_MINUTE = Protection(min_run_seconds=60, most_preemptions=2)
PREEMPTIVE = sorted(name for name, policy in policies().items() if policy.preempts)


def stopped(actions: list[Any]) -> list[str]:
    return [action.running.job.id for action in actions if isinstance(action, Preempt)]


def started(actions: list[Any]) -> list[str]:
    return [action.job.id for action in actions if isinstance(action, Start)]


def engine_with(policy: Policy, *running: Job, cluster: str = "1x2") -> Engine:
    """These jobs have just been started."""
    engine = Engine(declare(cluster), policy, can_preempt=True, protection=FOR_A_MINUTE)
    for job in running:
        engine.submit(job)
    assert len(started(engine.tick(0))) == len(running)
    return engine


def test_a_job_runs_for_a_minimum_time_before_it_is_preempted() -> None:
    engine = engine_with(make_policy("priority"), Job("a", gpus=2))
    engine.submit(Job("urgent", 10, gpus=2, priority=9))
    assert engine.tick(10) == []
    assert engine.wake_at == 60
    assert engine.tick(59) == []
    actions = engine.tick(60)
    assert (stopped(actions), started(actions)) == (["a"], ["urgent"])
    assert engine.progress("a").preemptions == 1


def test_a_job_that_was_preempted_often_is_not_preempted_again() -> None:
    engine = engine_with(make_policy("priority"), Job("a", gpus=2))
    for number, now in enumerate((100, 300, 500)):
        engine.submit(Job(f"urgent-{number}", now, gpus=2, priority=9))
        assert stopped(engine.tick(now)) == (["a"] if number < 2 else [])
        engine.ended(f"urgent-{number}")
        engine.tick(now + 1)
    assert engine.running["a"].before.preemptions == 2
    assert [job.id for job in engine.waiting] == ["urgent-2"]


def test_moves_do_not_count_as_preemptions() -> None:
    class Mover(Policy):
        """Moves every job to the other node."""

        name = "mover"
        preempts = moves_running = True

        def plan(self, state: State) -> None:
            for running in list(state.running.values()):
                elsewhere = [n for n in state.cluster if n.name not in running.nodes]
                state.draft.preempt(running.job.id)
                state.draft.start(running.job, tuple(s.device for s in elsewhere[0].devices))

    engine = Engine(declare("2x1"), make_policy("fifo"), can_preempt=True, protection=FOR_A_MINUTE)
    engine.submit(Job("a"))
    engine.tick(0)
    engine.swap(Mover())
    assert stopped(engine.tick(100)) == ["a"]
    assert engine.running["a"].before.preemptions == 0


@pytest.mark.parametrize("name", PREEMPTIVE)
def test_every_policy_plans_around_protected_jobs(name: str) -> None:
    """None of them tries to preempt one: otherwise it would plan twice."""
    asked = []
    policy = make_policy(name)
    plan = policy.plan
    policy.plan = lambda state: asked.append(1) or plan(state)  # type: ignore[method-assign,func-returns-value]
    fixed = Job("fixed", gpus=2, expected_s=1e6, preemptible=False)
    engine = Engine(declare("2x2"), make_policy("fifo"), can_preempt=True, protection=FOR_A_MINUTE)
    engine.submit(fixed)
    engine.tick(0)
    engine.swap(policy)
    for number in range(6):
        ask: dict[str, Any] = {"gpus": 1 + number % 2, "expected_s": 10.0, "deadline": 2000.0, "priority": 5}
        engine.submit(Job(f"job-{number}", 1000.0, min_gpus=1, max_gpus=2, **ask))
    for now in range(1000, 9000, 500):
        asked.clear()
        assert "fixed" not in stopped(engine.tick(now))
        assert len(asked) <= 1
        for job_id in [each for each in engine.running if each != "fixed"][:1]:
            engine.ended(job_id)
    assert not engine.policy_error
    assert engine.running["fixed"].since == 0
    assert not engine.waiting, "the others got what was left"


class Careless(Policy):
    """Preempts all jobs and starts the newest, without checking which are protected."""

    name = "careless"
    preempts = True

    def plan(self, state: State) -> None:
        if state.can_preempt or type(self).blind:
            for job_id in list(state.running):
                state.draft.preempt(job_id)
        for job in list(state.waiting)[::-1]:
            free = [s.device for s in state.cluster.devices.values() if not s.holders]
            if len(free) >= job.gpus:
                state.draft.start(job, tuple(free[: job.gpus]))

    blind = False


@pytest.mark.parametrize("blind", [False, True])
def test_a_policy_that_preempts_a_protected_job_stays_in_force(
    blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "blind", blind)
    engine = engine_with(Careless(), Job("a", gpus=1))
    engine.submit(Job("b", 10, gpus=1))
    actions = engine.tick(10)
    assert (stopped(actions), started(actions)) == ([], ["b"]), "the start that needs no preemption is kept"
    assert not engine.policy_error
    engine.submit(Job("c", 70, gpus=2))
    actions = engine.tick(75)
    assert (stopped(actions), started(actions)) == (["a", "b"], ["c"]), "a minute later it may"
    assert not engine.policy_error


def test_protection_can_be_changed_while_jobs_run() -> None:
    engine = engine_with(make_policy("priority"), Job("a", gpus=2))
    engine.submit(Job("urgent", 10, gpus=2, priority=9))
    assert engine.tick(10) == []
    engine.set_protection(Protection(min_run_seconds=0))
    assert stopped(engine.tick(11)) == ["a"]


def test_an_adopted_job_keeps_its_progress() -> None:
    engine = Engine(declare("1x2"), make_policy("priority"), can_preempt=True, protection=FOR_A_MINUTE)
    devices = tuple(state.device for state in engine.cluster.devices.values())
    engine.adopt(Job("a", gpus=2), devices, since=0, attempt=3, before=Progress(2, 50, 100, 50, 0, 2))
    engine.submit(Job("urgent", 500, gpus=2, priority=9))
    assert stopped(engine.tick(500)) == [], "it was preempted often enough under the earlier worker"


def test_a_preempted_job_is_not_refused_when_the_cluster_shrank() -> None:
    """A mistake in the declaration of the cluster must not end a preempted job."""
    engine = engine_with(make_policy("priority"), Job("a", gpus=2))
    engine.submit(Job("urgent", 100, gpus=2, priority=9))
    engine.tick(100)
    progress = engine.progress("a")
    engine.withdraw("a")  # it is removed while the cluster shrinks
    engine.set_nodes(declare("1x1"))
    engine.submit(Job("a", gpus=2), progress)
    engine.ended("urgent")
    assert engine.tick(101) == []
    engine.set_nodes(declare("1x2"))
    assert started(engine.tick(102)) == ["a"]


# -- job variables -------------------------------------------------------------------------------


def job(**variables: Any) -> Job:
    return job_from_variables("run", read_variables(variables), due=datetime.now(UTC))


def test_job_variables_about_preemption_and_size() -> None:
    plain = job()
    assert (plain.preemptible, plain.least, plain.most, plain.priority) == (True, 1, 1, 0)
    said = job(gpus=2, min_gpus=1, max_gpus=4, preemptible=False, priority_class="high", priority=5)
    assert (said.preemptible, said.least, said.most, said.priority) == (False, 1, 4, 105)
    assert job(priority_class="urgent").priority > job(priority_class="high", priority=800).priority
    for wrong in ({"gpus": 2, "min_gpus": 3}, {"gpus": 4, "max_gpus": 2}, {"priority_class": "now"}):
        with pytest.raises(BadJobVariables):
            job(**wrong)

"""Policies as their authors write them: the examples of the docs run, and the interface holds its rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Progress, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policies.fifo import Fifo, FifoOptions
from gpu_flows.schedulers.policy import Options, Policy, State, make_policy, policies
from gpu_flows.schedulers.policy_support.durations import expected_duration, remaining_duration
from gpu_flows.schedulers.policy_support.starting import run_by_rank, start_in_order
from gpu_flows.schedulers.running_order import RunningJobs, RunningRank
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.waiting_queue import WaitingJobs

ROOT = Path(__file__).parent.parent
EXAMPLES = [
    (page, name)
    for page in ("README.md", "docs/own-policies.md")
    for name in re.findall(r"^class (\w+)\(Policy", (ROOT / page).read_text(), re.MULTILINE)
]


def example(page: str, name: str) -> type[Policy]:
    """Execute the code block of the page that defines this class."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (source,) = [block for block in blocks if f"class {name}(" in block]
    names: dict[str, Any] = {}
    exec(compile(source, page, "exec"), names)
    found = names[name]
    assert issubclass(found, Policy)
    return found


@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_the_examples_of_the_docs_run(page: str, name: str) -> None:
    policy = example(page, name)
    assert policy.Options is PlacementOptions
    found = simulate(generate("poisson:jobs=200", seed=1), declare("4x8"), policy(placement="pack"))
    assert not found.policy_error
    assert all(job.ended is not None for job in found.jobs)


def test_the_docs_have_examples() -> None:
    assert [name for _, name in EXAMPLES] == ["SmallestFirst", "CheapestFirst", "NarrowFirst"]


def test_a_job_of_unknown_duration_comes_last() -> None:
    unknown, known = Job("unknown"), Job("known", submitted=1, expected_s=1e9)
    assert expected_duration(unknown) > expected_duration(known)
    assert remaining_duration(unknown, 5) > remaining_duration(known, 5) == 1e9 - 5
    cheapest_first = example("docs/own-policies.md", "CheapestFirst")
    for policy in (cheapest_first(), *(make_policy(name) for name in ("sjf", "srtf", "lwf_kappa", "afs_l"))):
        engine = Engine(declare("1x1"), policy)
        for job in (unknown, known):
            engine.submit(job)
        assert [job.id for job, _ in engine.reasons()] == ["known", "unknown"], policy.name


class ByPriority(Policy[PlacementOptions]):
    """The highest priority runs."""

    name = "by_priority"
    preempts = True

    def rank(self, job: Job, progress: Progress) -> int:
        return -job.priority

    def running_rank(self, running: Running) -> RunningRank:
        return RunningRank(-running.job.priority)

    def plan(self, state: State) -> None:
        run_by_rank(state, self.options)


class Settled(ByPriority):
    """The highest priority runs, and a running job keeps its devices among equals."""

    name = "settled"
    running_first = True


def test_ranks_are_completed_with_queue_priority_submit_time_and_id() -> None:
    engine = Engine(declare("1x1"), ByPriority())
    engine.submit(Job("other-queue", queue_priority=1, priority=9))
    engine.submit(Job("b", submitted=1))
    engine.submit(Job("a", submitted=1))
    engine.submit(Job("urgent", submitted=2, priority=1))
    engine.submit(Job("early", submitted=0))
    assert [job.id for job, _ in engine.reasons()] == ["urgent", "early", "a", "b", "other-queue"]


@pytest.mark.parametrize(("policy", "runs"), [(ByPriority, "early"), (Settled, "late")])
def test_among_equals_a_running_job_keeps_its_devices_if_the_policy_says_so(
    policy: type[Policy], runs: str
) -> None:
    engine = Engine(declare("1x1"), policy(), can_preempt=True)
    engine.submit(Job("late", submitted=1))
    engine.tick(1)
    engine.submit(Job("early", submitted=0))
    engine.tick(2)
    assert list(engine.running) == [runs]


def test_the_options_of_a_policy_are_the_model_in_the_brackets() -> None:
    class Plain(Policy):
        """It has no options."""

        name = "plain"

        def plan(self, state: State) -> None: ...

    class Strict(Fifo):
        """It inherits the options."""

        name = "strict"

    assert Plain.Options is Options
    assert Plain().options == Options()
    assert Fifo.Options is Strict.Options is FifoOptions
    assert Strict(skip=True).options.skip
    assert all(issubclass(policy.Options, Options) for policy in policies().values())


def test_a_policy_plans_while_no_job_waits_if_it_is_elastic_or_asks_for_it() -> None:
    assert not make_policy("sjf").moves_running
    assert not make_policy("fifo").moves_running
    assert make_policy("fifo", {"elastic": True}).moves_running
    assert make_policy("fair_share").moves_running


def test_a_policy_cannot_change_the_queue_or_the_running_order() -> None:
    """The types of the state offer no changes, so type checkers reject them."""
    for view in (WaitingJobs, RunningJobs):
        assert not {"add", "remove", "rerank", "rerank_all", "order_by"} & set(dir(view))


def test_the_earliest_wake_time_counts() -> None:
    class Wakes(Policy[PlacementOptions]):
        """It asks for several plans."""

        name = "wakes"

        def plan(self, state: State) -> None:
            for seconds in (30, 10, 20, float("inf")):
                state.draft.wake_at(state.now + seconds)
            start_in_order(state, self.options)

    engine = Engine(declare("1x1"), Wakes())
    engine.submit(Job("a"))
    engine.tick(100)
    assert engine.wake_at == 110


def test_candidates_skip_the_rest_of_a_request_that_does_not_fit() -> None:
    seen = []

    class Looks(Policy[PlacementOptions]):
        """It records the jobs that it looks at."""

        name = "looks"

        def plan(self, state: State) -> None:
            for job in state.queue.candidates():
                seen.append(job.id)
                if devices := self.options.place(job, state.cluster):
                    state.draft.start(job, devices)

    engine = Engine(declare("1x3"), Looks())
    for number in range(3):
        engine.submit(Job(f"wide-{number}", submitted=number, gpus=2))
        engine.submit(Job(f"narrow-{number}", submitted=number + 0.5))
    engine.tick(0)
    assert seen == ["wide-0", "narrow-0", "wide-1", "narrow-1"]
    assert sorted(engine.running) == ["narrow-0", "wide-0"]

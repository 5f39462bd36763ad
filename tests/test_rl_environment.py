"""The environment in which the policy `rl` is learned."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.learning.decisions import Decisions, Start, Stop
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.simulation.episode import Episode
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.rewards import SCALE, Presence, parse_reward
from gpu_flows.schedulers.workload import Arrival

pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env

from gpu_flows.schedulers.simulation.environment import SchedulingEnv


def draw(random: Random) -> Episode:
    arrivals = generate("recurring:jobs=24,rate_per_hour=60,most_gpus=4", random.randrange(1_000_000))
    return Episode(arrivals, declare("2x4"))


def play(env: SchedulingEnv, seed: int, chance: int = 0) -> tuple[list[int], float, dict[str, float]]:
    """Play an episode with random possible decisions; return them, the sum of rewards and the last info."""
    random, total, taken = np.random.default_rng(chance), 0.0, []
    env.reset(seed=seed)
    while True:
        taken.append(int(random.choice(np.flatnonzero(env.action_masks()))))
        _, reward, ended, _, info = env.step(taken[-1])
        total += reward
        if ended:
            return taken, total, info


@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_checker_accepts_it() -> None:
    check_env(SchedulingEnv(draw), skip_render_check=True)


def test_the_sum_of_rewards_is_the_part_of_the_baselines_turnaround_that_was_saved() -> None:
    _, total, info = play(SchedulingEnv(draw), seed=3)
    saved = 1 - info["turnaround_s"] / info["baseline_turnaround_s"]
    assert total == pytest.approx(SCALE * saved)


def test_as_makespan_the_sum_of_rewards_is_the_part_of_the_baselines() -> None:
    env = SchedulingEnv(draw, reward="makespan")
    _, total, _ = play(env, seed=3)
    assert total == pytest.approx(-SCALE * env._now / env.baseline.makespan)


def test_the_same_seed_and_decisions_give_the_same_episode() -> None:
    assert play(SchedulingEnv(draw), seed=5) == play(SchedulingEnv(draw), seed=5)
    assert play(SchedulingEnv(draw), seed=5)[1] != play(SchedulingEnv(draw), seed=6)[1]


def test_every_possible_decision_can_be_carried_out_and_every_job_ends() -> None:
    for seed in range(8):
        env = SchedulingEnv(draw, waiting=6, running=8)  # more jobs wait than the window shows
        play(env, seed, chance=seed)
        assert all(job.ended is not None for job in env._run.simulation.jobs)


def test_a_running_job_is_stopped_for_the_target_and_giving_up_stops_nothing() -> None:
    def two(_: Random) -> Episode:
        first = Arrival(Job("long", gpus=2), 10_000.0)
        return Episode([first, Arrival(Job("short", 1_000.0), 10.0)], declare("1x2"))

    env = SchedulingEnv(two, placements=("pack",), waiting=2, running=2)
    env.reset(seed=0)
    assert env.action_masks().tolist() == [True, False, False, False, False]  # start the only job
    env.step(0)
    assert env.action_masks().tolist() == [True, False, False, False, True]  # make room for the short one
    observation, *_ = env.step(0)
    assert observation["target"].tolist() == [1.0, 0.0]
    assert env.action_masks().tolist() == [False, False, True, False, True]  # stop the long one, or give up
    env.step(4)
    assert "short" not in env._run.engine.running
    while not env.action_masks()[0]:  # later it is asked again
        env.step(4)
    env.step(0)
    env.step(2)
    assert [job.arrival.job.id for job in env._run.simulation.jobs if job.ended is not None] == ["short"]
    assert env._run.simulation.preemptions == 1


def test_no_job_waits_while_it_fits() -> None:
    env = SchedulingEnv(draw)
    random = np.random.default_rng(1)
    env.reset(seed=2)
    ended = False
    while not ended:
        mask = env.action_masks()
        if mask[-1] and not env._policy.has_target:
            assert not any(env._policy._fits(job) for job in env._policy._waiting)
        ended = env.step(random.choice(np.flatnonzero(mask)))[2]


def test_decisions_are_numbered_starts_first_then_stops_then_to_wait() -> None:
    decisions = Decisions(waiting=3, running=2, placements=2)
    assert [decisions.decode(number) for number in range(decisions.total)] == [
        *(Start(slot, placement) for slot in range(3) for placement in range(2)),
        Stop(0),
        Stop(1),
        None,
    ]


def test_a_reward_may_be_a_mix() -> None:
    assert parse_reward("turnaround:0.7+makespan:0.3") == {"turnaround": 0.7, "makespan": 0.3}
    assert set(parse_reward("mix")) == {"turnaround", "utilization"}
    with pytest.raises(ValueError, match="There is no reward 'speed'"):
        parse_reward("speed")


def test_presence_is_the_time_that_jobs_spent_in_the_system() -> None:
    presence = Presence([0.0, 10.0], [30.0, 20.0])
    assert [presence.until(now) for now in (0.0, 10.0, 15.0, 20.0, 40.0)] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert presence.total == 40.0

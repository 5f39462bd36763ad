"""Jobs that share uplinks: how many send at a time, how much that slows each of them, what they lose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_network import FREE, make_network

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job, Tier
from gpu_flows.schedulers.network.collectives import Link
from gpu_flows.schedulers.network.contention import count_senders
from gpu_flows.schedulers.network.models import TrainedModel
from gpu_flows.schedulers.network.network import Network
from gpu_flows.schedulers.network.tables import load_network
from gpu_flows.schedulers.network.traffic import Traffic
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import State, make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import summarize
from gpu_flows.schedulers.workload import Arrival, allow_spanning

SPREAD = {"placement": "any"}


def test_senders_of_a_link() -> None:
    assert count_senders(1, 0.9, 0.1) == 1
    assert count_senders(3, -1e-18, 2.0) == 1
    # each of two jobs sends for a tenth of its time, and could send for half of it without harm
    assert count_senders(2, 0.2, 2 * 0.9) == pytest.approx(1.1)
    # ten jobs need five times what the link has: an iteration takes five times as long, of which each job
    # computes half of the original time, and it sends for the rest
    assert count_senders(10, 5.0, 10 * 0.5) == pytest.approx(1 + 9 * (1 - 0.5 / 5))


def test_saturated_link_carries_just_what_its_jobs_send() -> None:
    jobs = 40
    traffic = make_network(Link(1e9, 0.0), messages=100, overlap=0.5).compute_traffic(
        TrainedModel("toy", 1e8, 100, 1.0, 0.5), ((1, 1),)
    )
    senders = count_senders(jobs, jobs * traffic.loads[0], jobs * traffic.computing)
    assert traffic.iteration_s(senders) == pytest.approx(jobs * 0.1, rel=0.02)  # 0.1 s on the link for each


def run(network: Network, arrivals: list[Arrival], nodes: str) -> Simulation:
    policy = make_policy("fifo", SPREAD)
    return simulate(arrivals, declare(nodes), policy, Conditions(network=network))


def wide(name: str, submitted: float, duration: float = 100, gpus: int = 3) -> Arrival:
    return Arrival(Job(name, gpus=gpus, submitted=submitted, may_span_nodes=True), duration)


def test_jobs_on_one_uplink_slow_each_other_down_while_they_share_it() -> None:
    """Alone, a job computes for a second and sends for one. Two of them meet half of the time, so that 1.5
    jobs send at a time: an iteration takes 2.5 s."""
    network = make_network(rack=Link(1e9, 0.0))
    found = run(network, [wide("a", 0), wide("b", 50)], "3x2")  # both have a device on the second node
    first, second = found.jobs
    assert first.ended == pytest.approx(50 + 75 * 2.5)
    assert second.ended == pytest.approx(50 + 75 * 2.5 + 25 * 2)
    for job in (first, second):
        assert job.comm_s == pytest.approx(job.ran_s - 100)
    assert [attempt.tier for attempt in found.attempts] == [Tier.RACK, Tier.RACK]
    assert found.network == "toy"
    figures = summarize(found)
    assert figures.avg_comm_s == pytest.approx((first.ran_s + second.ran_s) / 2 - 100)
    assert figures.comm == pytest.approx(1 - 200 / (first.ran_s + second.ran_s))
    assert (figures.attempts_in_node, figures.attempts_in_rack, figures.attempts_across_racks) == (0, 2, 0)


def rates_from_scratch(state: State, network: Network) -> dict[str, float]:
    """Return the rate of each running job by what all of them send now, without what is kept up to date."""
    traffics: dict[str, Traffic] = {}
    jobs_of: dict[tuple[int, str], list[str]] = {}  # of each uplink, by tier and name of the node or rack
    for job_id, running in state.running.items():
        shape = state.cluster.shape(running.devices)
        racks = {state.cluster.nodes[node].rack.name for node in running.nodes}
        traffic = network.traffic(running.job, shape)
        assert traffic is not None
        traffics[job_id] = traffic
        for tier, names in enumerate((running.nodes, racks)):
            if len(names) > 1:
                for name in names:
                    jobs_of.setdefault((tier, name), []).append(job_id)
    senders = {job_id: [1.0, 1.0] for job_id in traffics}
    for (tier, _), jobs in jobs_of.items():
        load = sum(traffics[job_id].loads[tier] for job_id in jobs)
        computing = sum(traffics[job_id].computing for job_id in jobs)
        for job_id in jobs:
            senders[job_id][tier] = max(senders[job_id][tier], count_senders(len(jobs), load, computing))
    return {job_id: 1 / traffic.slowdown(*senders[job_id]) for job_id, traffic in traffics.items()}


@pytest.mark.parametrize("name", ["fifo", "srtf", "tiresias"])
def test_rates_and_times_are_those_of_the_jobs_that_share_uplinks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, policy, rates = load_network("realistic", congestion=5), make_policy(name, SPREAD), set[float]()
    plan = policy.plan

    def check_and_plan(state: State) -> None:
        expected = rates_from_scratch(state, network)
        assert {job_id: running.rate for job_id, running in state.running.items()} == pytest.approx(expected)
        rates.update(expected.values())
        plan(state)

    monkeypatch.setattr(policy, "plan", check_and_plan)
    arrivals = allow_spanning(generate("poisson:jobs=300", seed=3), wider_than=1)
    conditions = Conditions(network=network, node_mtbf_s=1e5, restart_s=60)
    found = simulate(arrivals, declare("6x4@2"), policy, conditions)
    assert found.policy_error == ""
    assert found.losses
    assert len(rates) > 50
    assert {attempt.tier for attempt in found.attempts} == set(Tier)
    comm_s, restart_s = ({job.arrival.job.id: 0.0 for job in found.jobs} for _ in range(2))
    for attempt in found.attempts:
        assert (attempt.comm_s > 0) <= (attempt.tier > Tier.NODE)
        comm_s[attempt.job_id] += attempt.comm_s
        if attempt.number > 1:
            restart_s[attempt.job_id] += min(60, attempt.ended - attempt.started)
    for job in found.jobs:
        job_id = job.arrival.job.id
        assert job.comm_s == pytest.approx(comm_s[job_id])
        assert job.ran_s == pytest.approx(job.arrival.duration_s + job.comm_s + restart_s[job_id])


def test_jobs_on_different_uplinks_do_not_affect_each_other() -> None:
    network = make_network(rack=Link(1e9, 0.0))
    found = run(network, [wide("a", 0, gpus=4), wide("b", 50, gpus=4)], "4x2")
    assert [job.ended for job in found.jobs] == [200, 250]


def test_jobs_share_the_uplinks_of_racks() -> None:
    network = make_network(rack=FREE, cluster=Link(1e9, 0.0))
    alone = run(network, [wide("a", 0, gpus=2)], "2x1@1")
    assert alone.jobs[0].ended == 200
    assert alone.attempts[0].tier == Tier.CLUSTER
    both = run(network, [wide("a", 0, gpus=3), wide("b", 0, gpus=3)], "6x1@2")  # the second rack has both
    assert [job.ended for job in both.jobs] == [250, 250]


def test_capacity_of_an_uplink_serves_several_jobs() -> None:
    roomy = make_network(rack=Link(1e9, 0.0, capacity=4e9))
    assert [job.ended for job in run(roomy, [wide("a", 0), wide("b", 0)], "3x2").jobs] == [200, 200]


def test_table_without_contention() -> None:
    network = replace(make_network(rack=Link(1e9, 0.0)), contention=False)
    assert [job.ended for job in run(network, [wide("a", 0), wide("b", 50)], "3x2").jobs] == [200, 250]


def test_time_of_a_restart_is_not_lost_to_the_network() -> None:
    network = make_network(rack=Link(1e9, 0.0))
    short = Arrival(Job("short", gpus=4, submitted=20, may_span_nodes=True), 10)
    policy = make_policy("srtf", SPREAD)
    conditions = Conditions(network=network, restart_s=7)
    found = simulate([wide("long", 0, gpus=4), short], declare("2x2"), policy, conditions)
    long = found.jobs[0]
    assert long.attempts == 2
    assert long.ran_s == pytest.approx(200 + 7)
    assert long.comm_s == pytest.approx(100)
    assert [attempt.comm_s for attempt in found.attempts] == pytest.approx([10, 10, 90])


def test_policies_are_told_the_slowdown_without_other_jobs() -> None:
    seen: list[float] = []

    class Asking(Fifo):
        def plan(self, state: State) -> None:
            seen.extend(state.network(job, ((1, 1),)) for job in state.waiting)
            super().plan(state)

    network = make_network(rack=Link(1e9, 0.0))
    simulate([wide("a", 0)], declare("2x2"), Asking(), Conditions(network=network))
    assert seen[0] == 2

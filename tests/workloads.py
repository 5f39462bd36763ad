"""Random workloads for property tests, and a policy that fails."""

from __future__ import annotations

from hypothesis import strategies as st

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.workload import Arrival


@st.composite
def workloads(draw: st.DrawFn, most_gpus: int = 4, most_jobs: int = 25, span: bool = True) -> list[Arrival]:
    """Up to `most_jobs` jobs with whole-second times, so that many events coincide."""
    arrivals = []
    for number in range(draw(st.integers(1, most_jobs))):
        job = Job(
            id=f"{number:03}",
            submitted=float(draw(st.integers(0, 40))),
            gpus=draw(st.integers(1, most_gpus)),
            user=draw(st.sampled_from(["ann", "bob", "eve"])),
            priority=draw(st.integers(0, 2)),
            deadline=draw(st.none() | st.floats(0, 200)),
            may_span_nodes=span,
        )
        arrivals.append(Arrival(job, float(draw(st.integers(0, 30)))))
    return arrivals


@st.composite
def motley_workloads(draw: st.DrawFn, most_jobs: int = 20) -> list[Arrival]:
    """Jobs that differ in everything a job can ask for: models, nodes, memory, processors, sizes, queues."""
    arrivals = []
    for number in range(draw(st.integers(1, most_jobs))):
        gpus = draw(st.integers(1, 6))
        elastic = draw(st.booleans())
        job = Job(
            id=f"{number:03}",
            submitted=float(draw(st.integers(0, 40))),
            gpus=gpus,
            memory_mb=draw(st.sampled_from([0, 0, 1024, 12 * 1024, 40 * 1024])),
            user=draw(st.sampled_from(["ann", "bob"])),
            queue_priority=draw(st.integers(0, 1)),
            priority=draw(st.integers(0, 2)),
            deadline=draw(st.none() | st.floats(0, 200)),
            nodes=draw(st.sampled_from([(), (), ("node-[12]",)])),
            models=draw(st.sampled_from([(), (), ("A100",), ("T4",)])),
            may_span_nodes=draw(st.booleans()),
            min_gpus=draw(st.integers(1, gpus)) if elastic else 0,
            max_gpus=draw(st.integers(gpus, 8)) if elastic else 0,
            cpus=draw(st.sampled_from([0.0, 0.0, 2.0, 6.0])),
        )
        arrivals.append(Arrival(job, float(draw(st.integers(0, 30)))))
    return arrivals


class FailingPolicy(Policy):
    """Fails halfway through a plan."""

    name = "failing"

    def plan(self, state: State) -> None:
        for job in list(state.waiting)[:1]:
            node = next(iter(state.cluster))
            state.draft.start(job, tuple(s.device for s in node.devices[: job.gpus]))
        raise RuntimeError("out of ideas")

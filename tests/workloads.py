"""Random workloads for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.simulation.workload import Arrival


@st.composite
def workloads(draw: st.DrawFn, most_gpus: int = 4, most_jobs: int = 25, span: bool = True) -> list[Arrival]:
    """Up to so many jobs with whole-second times, so that many things happen at once."""
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

"""Jobs that may come later: under many policies they overtake those that wait, which forecasts must expect.

What came lately comes again: the last arrivals are replayed from a random one of them on, with their
distances, sizes and durations, so that bursts and users stay as they are. The time since the last arrival
counts as a distance too.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from gpu_flows.schedulers.forecast.duration_spread import draw_durations
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.workload import Arrival

FEWEST = 5  # fewer arrivals do not show what comes
MOST = 100  # jobs that come later; or as many as are there, if these are more
DRAWS = 7  # ranges from which a duration is drawn
FACTOR = 4.0  # arrivals are drawn for this multiple of the time in which the devices could do what is there


def may_overtake(policy: Policy) -> bool:
    """Return whether jobs that come later can delay those that are there."""
    return policy.preempts or type(policy).rank is not Policy.rank


def draw_later(state: PoolState, seed: str) -> list[Arrival]:
    """Return jobs as they may come from now on."""
    recent = sorted(state.recent, key=lambda each: each[0].submitted)
    if len(recent) < FEWEST:
        return []
    draw, now = random.Random(seed), state.now
    times = [job.submitted for job, _ in recent]
    gaps = [later - earlier for earlier, later in zip(times, [*times[1:], max(now, times[-1])], strict=True)]
    if sum(gaps) <= 0:
        return []  # all came at once, and nothing shows when the next ones come
    at, until, most = now, now + FACTOR * _work_left(state), max(MOST, len(state.jobs()))
    arrivals: list[Arrival] = []
    number = draw.randrange(len(recent))
    while len(arrivals) < most:
        at += gaps[number]
        if at > until:
            break
        number = (number + 1) % len(recent)
        job, duration = recent[number]
        shift = at - job.submitted
        deadline = None if job.deadline is None else job.deadline + shift
        come = replace(job, id=f"later-{len(arrivals)}", submitted=at, deadline=deadline)
        took = draw_durations(duration, 0.0, DRAWS, f"{seed}/{len(arrivals)}")[0]
        arrivals.append(Arrival(come, took, launch_s=state.costs.launch_s))
    return arrivals


def _work_left(state: PoolState) -> float:
    """Return how long all devices would take for the jobs that are there."""
    done, devices = state.work(), sum(len(node.devices) for node in state.nodes) or 1
    known = ((job, state.duration(job_id)) for job_id, job in state.jobs().items())
    left = (job.gpus * max(0.0, found.upper - done[job.id]) for job, found in known if found)
    longest = max((found.upper for found in map(state.duration, state.jobs()) if found), default=0.0)
    return math.fsum(left) / devices + longest

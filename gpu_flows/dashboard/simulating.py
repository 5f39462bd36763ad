"""The program that answers one question by simulations, in a process of its own.

It reads the question from stdin as JSON, and writes lines of JSON to stdout: ["progress", text], and at the
end ["answer", value] or ["error", text]. It runs at a low priority, as the pool's worker may be here too.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.analytics.whatif import Choice, NoRecord, Scenario, replay
from gpu_flows.analytics.whatif.clusters import change_gpus
from gpu_flows.forecasting.state_file import read_present_state
from gpu_flows.schedulers.forecast.alternatives import find_alternatives, look_ahead
from gpu_flows.schedulers.forecast.forward import UnknownDurations, begin, medians, run_until
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.mirror import Held
from gpu_flows.schedulers.model import Progress, Running, all_devices
from gpu_flows.schedulers.policy import PolicyError

NICENESS = 10
MOST_USERS = 10
NO_STATE = "The worker of this pool does not write the state that forecasts begin with."


def main() -> None:
    os.nice(NICENESS)
    question = json.load(sys.stdin)
    try:
        _send("answer", QUESTIONS[question.pop("ask")](**question))
    except FileNotFoundError:
        _send("error", NO_STATE)
    except (UnknownDurations, PolicyError, QueryError, NoRecord, ValueError) as error:
        _send("error", str(error))


def _read_state(folder: str) -> PoolState:
    """Return the last state of the pool, as it is now. Raises FileNotFoundError."""
    state = read_present_state(Path(folder))
    if state is None:
        raise FileNotFoundError(folder)
    return state


def explain_job(state: str, job: str, budget_s: float) -> dict[str, Any]:
    """Return when a waiting job starts, which jobs it waits for, and what would let it start earlier."""
    pool, deadline = _read_state(state), time.monotonic() + budget_s
    if job not in {waiting.id for waiting, _ in pool.waiting}:
        raise ValueError("It does not wait any more.")
    outlook = look_ahead(pool, job)
    found = find_alternatives(
        pool, job, outlook.start if outlook else None, is_late=lambda: time.monotonic() > deadline
    )
    return {
        "at": pool.now,
        "outlook": asdict(outlook) if outlook else None,
        "alternatives": [asdict(each) for each in found],
        "complete": time.monotonic() <= deadline,
    }


def compare_present(state: str, policies: Sequence[str], gpus: int) -> dict[str, Any]:
    """Return how the jobs that wait and run now would fare: as it is, and under each policy with so many more
    or fewer devices."""
    pool = _read_state(state)
    changed = _with_gpus(pool, gpus) if gpus else pool
    names = list(policies) or ([pool.policy] if gpus else [])
    plans = [("as it is", pool), *((name, _under(changed, name)) for name in names)]
    rows: list[dict[str, Any]] = []
    for number, (label, plan) in enumerate(plans):
        _send("progress", f"{number} of {len(plans)} simulated")
        rows.append({"label": label, "policy": plan.policy, **_measure(plan)})
    return {"rows": rows}


def _under(pool: PoolState, policy: str) -> PoolState:
    return pool if policy == pool.policy else pool.under(policy)


def _with_gpus(pool: PoolState, gpus: int) -> PoolState:
    """Return the pool with so many more or fewer devices. Jobs on devices that are taken away go back to the
    queue, and continue where they are."""
    nodes = tuple(change_gpus(pool.nodes, gpus).nodes)
    there = {device.id for device in all_devices(nodes)}
    kept = tuple(held for held in pool.running if all(device.id in there for device in held.devices))
    waiting = tuple((held.job, _progress(held, pool.now)) for held in pool.running if held not in kept)
    return replace(pool, nodes=nodes, running=kept, waiting=(*waiting, *pool.waiting))


def _progress(held: Held, now: float) -> Progress:
    return Running(
        held.job, held.devices, held.since, held.attempt, before=held.before, rated=held.since
    ).progress(now)


def replay_recorded(
    database: str, pool: str, since: float, policies: Sequence[str], gpus: int
) -> dict[str, Any]:
    """Return how the jobs recorded since then fared, and how they would have."""
    _send("progress", "reads what was recorded, and replays it")
    found = replay(Path(database), pool, since, policies=[Choice(name) for name in policies], gpus=gpus)
    scenarios = [("as recorded", found.recorded), ("replayed", found.replayed)]
    scenarios += [(each.label, each) for each in found.alternatives]
    return {
        "rows": [
            {
                "label": label if label != "replayed" else f"{each.label}, replayed",
                "gpus": each.devices,
                "policy_error": each.policy_error,
                **asdict(each.figures),
            }
            for label, each in scenarios
        ],
        "users": [_describe_users(each) for each in found.alternatives],
        "known": list(found.known),
        "assumed": list(found.assumed),
    }


def _describe_users(scenario: Scenario) -> dict[str, Any]:
    return {"label": scenario.label, "users": [asdict(user) for user in scenario.users[:MOST_USERS]]}


def _measure(pool: PoolState) -> dict[str, Any]:
    """Simulate until every job has ended, and return the figures of the jobs that are there now."""
    run = begin(pool, medians(pool))
    run_until(run, lambda _: False)
    results = [run.result(job_id) for job_id in pool.jobs()]
    ends = [each.ended for each in results if each.ended is not None]
    waits = [
        each.started - pool.now for job, _ in pool.waiting if (each := run.result(job.id)).started is not None
    ]
    turnarounds = [each.turnaround_s for each in results if each.ended is not None]
    return {
        "gpus": sum(len(node.devices) for node in pool.nodes),
        "jobs": len(results),
        "finished": len(ends),
        "makespan_s": max(ends) - pool.now if ends else None,
        "avg_turnaround_s": fmean(turnarounds) if turnarounds else None,
        "avg_wait_s": fmean(waits) if waits else None,
        "p90_wait_s": _quantile(sorted(waits), 0.9) if waits else None,
        "preemptions": run.simulation.preemptions,
    }


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


QUESTIONS: dict[str, Callable[..., Any]] = {
    "job": explain_job,
    "present": compare_present,
    "recorded": replay_recorded,
}


def _send(kind: str, value: object) -> None:
    print(json.dumps([kind, _without_nan(value)]), flush=True)


def _without_nan(value: Any) -> Any:
    """Replace figures that no job has by None."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {name: _without_nan(each) for name, each in value.items()}
        case list():
            return [_without_nan(each) for each in value]
    return value


if __name__ == "__main__":
    main()

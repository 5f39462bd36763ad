"""The program that answers one question by simulations, in a process of its own.

It reads the question from stdin as JSON, and writes lines of JSON to stdout: ["progress", text], and at the end
["answer", value] or ["error", text]. It runs at a low priority: the worker of the pool may be on the same machine.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gpu_flows.schedulers.forecast.alternatives import find_alternatives, look_ahead
from gpu_flows.schedulers.forecast.forward import UnknownDurations, begin, medians, run_until
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.policy import PolicyError

NICENESS = 10
NO_STATE = "The worker of this pool does not write the state that forecasts begin with."


def main() -> None:
    os.nice(NICENESS)
    question = json.load(sys.stdin)
    try:
        _send("answer", QUESTIONS[question.pop("ask")](**question))
    except FileNotFoundError:
        _send("error", NO_STATE)
    except (UnknownDurations, PolicyError, ValueError) as error:
        _send("error", str(error))


def explain_job(state: str, job: str, budget_s: float) -> dict[str, Any]:
    """Return when a waiting job starts, which jobs it waits for, and what would let it start earlier."""
    pool, deadline = PoolState.from_json(Path(state).read_bytes()), time.monotonic() + budget_s
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


def compare_present(state: str, policies: Sequence[str], gpus: int) -> list[dict[str, Any]]:
    """Return how the jobs that wait and run now would fare: as it is, and under each policy with so many more
    or fewer devices."""
    pool = PoolState.from_json(Path(state).read_bytes())
    changed = _with_gpus(pool, gpus) if gpus else pool
    names = list(policies) or ([pool.policy] if gpus else [])
    plans = [("as it is", pool), *((name, _under(changed, name)) for name in names)]
    rows: list[dict[str, Any]] = []
    for number, (label, plan) in enumerate(plans):
        _send("progress", f"{number} of {len(plans)} simulated")
        rows.append({"label": label, "policy": plan.policy, **_measure(plan)})
    return rows


def _under(pool: PoolState, policy: str) -> PoolState:
    return pool if policy == pool.policy else pool.under(policy)


def _with_gpus(pool: PoolState, gpus: int) -> PoolState:
    raise NotImplementedError


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


QUESTIONS: dict[str, Callable[..., Any]] = {"job": explain_job, "present": compare_present}


def _send(kind: str, value: object) -> None:
    print(json.dumps([kind, value]), flush=True)


if __name__ == "__main__":
    main()

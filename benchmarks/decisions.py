"""How long one plan takes: 10,000 devices, 10,000 waiting jobs, each policy.

    python benchmarks/decisions.py [--devices 10000] [--waiting 10000] [--policies NAME,...] [--runs 300]
        [--span]

The cluster is full when measuring begins; it was filled by a hundred jobs a minute. Every ten seconds a job
ends or another arrives, and policies are called when they ask to be, as in a live pool. Prints median and p99
of the processor time for each policy (a plan waits for nothing). With --span, jobs may span nodes, which are
in racks of 16. For schedtune, which packs by memory, every job has a bound and is of one of four kinds that
Gavel measured together: `schedtune` has four bounds, and `schedtune, each its own` draws one for each job, as
predictions do. Goal: p99 under 10 ms for fifo, round_robin, srtf, tiresias, dally and schedtune. Exit code 1
if it is missed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from common import SPREAD_HEADING, Goal, Spread, log_progress, make_parser, report, run_benchmark

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.policy import policies as all_policies

GOAL_MS = 10.0
HELD_TO_IT = ("fifo", "round_robin", "srtf", "tiresias", "dally", "schedtune")
KINDS = ("ResNet-50 (batch size 64)", "LM (batch size 20)", "CycleGAN", "A3C")
BOUNDS: dict[str, Callable[[random.Random], int]] = {  # MiB
    "": lambda chance: chance.choice((2000, 5000, 9000, 14_000)),
    "each its own": lambda chance: chance.randrange(1000, 15_000),
}


def a_job(number: int, chance: random.Random, span: bool) -> Job:
    gpus = chance.choice((1, 1, 1, 2, 4, 8))
    return Job(
        id=f"{number:06}",
        submitted=float(number),
        gpus=gpus,
        may_span_nodes=span and gpus > 1,
        user=f"user-{chance.randrange(50)}",
        priority=chance.randrange(3),
        expected_s=chance.lognormvariate(8, 1.5),
    )


def plans(
    policy: str,
    devices: int,
    waiting: int,
    runs: int,
    span: bool,
    find_bound: Callable[[random.Random], int] | None = None,
) -> list[float]:
    """Seconds of processor time that each plan took."""
    chance = random.Random(0)

    def next_job() -> Job:
        job = a_job(next(numbers), chance, span)
        if find_bound is None:
            return job
        return replace(job, memory_mb=find_bound(chance), kind=chance.choice(KINDS))

    cluster = f"{devices // 8}x8{'@16' if span else ''}"
    engine = Engine(declare(cluster), make_policy(policy), can_preempt=True)
    numbers = iter(range(10_000_000))
    now = 0.0
    while len(engine.waiting) < waiting:  # filling up, a hundred jobs a minute, is not measured
        for _ in range(20):
            engine.submit(next_job())
        now += 12.0
        engine.tick(now)
    took = []
    event_at = now
    for run in range(runs):
        if now >= event_at:
            if run % 2:
                engine.submit(next_job())
            elif engine.running:
                engine.ended(chance.choice(list(engine.running)))
            event_at += 10.0
        began = time.process_time()
        engine.tick(now)
        took.append(time.process_time() - began)
        now = event_at if engine.wake_at is None else min(event_at, engine.wake_at)
    if engine.policy_error:
        raise SystemExit(f"{policy}: {engine.policy_error}")
    return took


def main() -> int:
    parser = make_parser(__doc__ or "", 300, "plans measured for each policy")
    for option in ("--devices", "--waiting"):
        parser.add_argument(option, type=int, default=10_000)
    parser.add_argument("--policies", default=",".join(sorted(all_policies())), help="names, by commas")
    parser.add_argument("--span", action="store_true", help="jobs may span nodes, which are in racks of 16")
    asked = parser.parse_args()
    goals: list[Goal] = []
    details: dict[str, dict[str, float]] = {}
    size = f"{asked.devices:,} devices, at least {asked.waiting:,} waiting"
    print(f"{size}; milliseconds of processor time for one plan")
    print(f"{'policy':<24}{'p99':>8} {SPREAD_HEADING}")
    for policy in asked.policies.split(","):
        for bounds in BOUNDS if policy == "schedtune" else [""]:
            title = f"{policy}, {bounds}" if bounds else policy
            find_bound = BOUNDS[bounds] if policy == "schedtune" else None
            log_progress(title)
            took = sorted(plans(policy, asked.devices, asked.waiting, asked.runs, asked.span, find_bound))
            p99 = took[min(len(took) - 1, round(0.99 * (len(took) - 1)))]
            print(f"{title:<24}{p99 * 1e3:>8.2f} {Spread.of(took).text(1e3)}")
            details[title] = {"p99_ms": p99 * 1e3, "median_ms": took[len(took) // 2] * 1e3}
            if policy in HELD_TO_IT:
                goals.append(Goal(f"{title}: p99 of a plan", p99 * 1e3, GOAL_MS, " ms"))
    return report(goals, details, asked.json)


if __name__ == "__main__":
    run_benchmark(main)

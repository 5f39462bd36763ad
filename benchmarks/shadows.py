"""What shadows cost the pool: the time that its event loop spends on a decision, with and without them.

    python benchmarks/shadows.py [--waiting 1000] [--runs 300] [--shadows NAME,...] [--policy fifo]

A dispatcher with a real forecasting process, in which a job ends or arrives twenty times a second. The
forecasting process is there in both runs, because forecasts are made without shadows as well. Prints, in
microseconds of wall time in the event loop: the plan of the policy, and everything else around it (comparing
the state, sending it, and recording what comes back), and the plans of the shadows in their own process. Not
every decision is compared, so the 90th percentile tells more than the median. Goal: 3 shadows add less than
100 microseconds to it. Exit code 1 if it is missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from common import SPREAD_HEADING, Goal, Spread, log_progress, make_parser, report, run_benchmark

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fake_pool import FakePool, happens

from gpu_flows.analytics.facts import Decided, ShadowDecided
from gpu_flows.dispatch.spectator import Spectator
from gpu_flows.forecasting.forecaster import Forecaster
from gpu_flows.forecasting.messages import Settings
from gpu_flows.forecasting.shadow_record import ShadowRecord
from gpu_flows.schedulers.model import Action, Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.prediction.estimate import Estimate

GOAL_US = 100.0
DEVICES = 64
PAUSE_S = 0.05  # between two events


class Timed(Spectator):
    """Measures what another spectator takes."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self.took_us: list[float] = []

    def before_plan(self, now: float) -> None:
        self._began = time.perf_counter()
        self._forecaster.before_plan(now)
        self._so_far = time.perf_counter() - self._began

    def after_plan(self, policy: str, actions: list[Action], now: float, took_us: float) -> None:
        began = time.perf_counter()
        self._forecaster.after_plan(policy, actions, now, took_us)
        if actions:
            self.took_us.append((self._so_far + time.perf_counter() - began) * 1e6)


class Measured(NamedTuple):
    """Microseconds of the event loop, and what the shadows decided."""

    plans: list[float]
    around: list[float]
    answers: list[float]
    verdicts: list[ShadowDecided]


async def measure(policy: str, shadows: list[str], waiting: int, decisions: int) -> Measured:
    answers: list[float] = []

    def use(told: list[dict[str, Any]]) -> None:
        began = time.perf_counter()
        record.use(told)
        answers.append((time.perf_counter() - began) * 1e6)

    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        pool = FakePool(Path(folder), f"{DEVICES // 8}x8", make_policy(policy))
        record = ShadowRecord("pool", lambda *facts: pool.facts.extend(facts), logging.getLogger())
        forecaster = Forecaster(
            "pool",
            Path(folder),
            pool.engine,
            lambda job: Estimate(job.expected_s or 1.0, 2 * (job.expected_s or 1.0), "stated"),
            lambda: Settings(policy, shadows={name: {} for name in shadows}, saved="1"),
            lambda *facts: None,
            logging.getLogger(),
            use,
            clock=lambda: pool.runtime.now,
        )
        timed = pool.dispatcher.spectator = Timed(forecaster)
        serving = asyncio.ensure_future(forecaster.keep_forecasting())
        for number in range(waiting + DEVICES):
            _submit(pool, number, chance)
        await happens(lambda: all(record.describe(name)["plans"] for name in shadows) and pool.runtime.live)
        await asyncio.sleep(5.0)  # the first forecast
        pool.facts.clear()
        timed.took_us.clear()
        answers.clear()
        for number in range(decisions):
            pool.runtime.now += 5.0
            pool.runtime.exit(chance.choice(sorted(pool.runtime.live)), 0)
            await asyncio.sleep(PAUSE_S)
            _submit(pool, waiting + DEVICES + number, chance)
            await asyncio.sleep(PAUSE_S)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await pool.dispatcher.close()
    plans = [each.took_us for each in pool.facts if isinstance(each, Decided)]
    verdicts = [each for each in pool.facts if isinstance(each, ShadowDecided)]
    return Measured(plans, timed.took_us, answers, verdicts)


def _submit(pool: FakePool, number: int, chance: random.Random) -> None:
    gpus = chance.choice((1, 1, 1, 2, 4))
    pool.gateway.states[f"{number:06}"] = "waiting"
    expected_s = chance.uniform(60, 6000)
    job = Job(f"{number:06}", pool.runtime.now, gpus, user=f"user-{number % 20}", expected_s=expected_s)
    pool.dispatcher.submit(job)


def main() -> int:
    parser = make_parser(__doc__ or "", 300, "decisions measured with and without shadows")
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--shadows", default="sjf,srtf,tiresias", help="names, by commas")
    parser.add_argument("--policy", default="fifo")
    asked = parser.parse_args()
    names = asked.shadows.split(",")
    totals: dict[int, float] = {}
    details: dict[str, dict[str, float]] = {}
    print(f"{asked.waiting:,} waiting jobs, {DEVICES} devices; microseconds of wall time")
    print(f"{'':<36}{SPREAD_HEADING}")
    for shadows in ([], names):
        log_progress(f"{len(shadows)} shadows")
        measured = asyncio.run(measure(asked.policy, shadows, asked.waiting, asked.runs))
        parts = {
            "plan": measured.plans,
            "compare and send": measured.around,
            "record answers": measured.answers,
        }
        for part, took in parts.items():
            title = f"{len(shadows)} shadows, {part}"
            print(f"{title:<36}{Spread.of(took or [0.0]).text(digits=0)}")
            details[title] = {"p90_us": Spread.of(took or [0.0]).p90}
        totals[len(shadows)] = sum(Spread.of(took or [0.0]).p90 for took in parts.values())
        for name in shadows:
            own = [each for each in measured.verdicts if each.shadow == name]
            plans_us = Spread.of([each.took_us for each in own] or [0.0])
            print(f"  {name + ', its plan':<34}{plans_us.text(digits=0)}")
            skipped = sum(each.skipped for each in own)
            log_progress(f"{name}: {len(own)} verdicts, {skipped} decisions with moves not seen")
            details[name] = {"seen": len(own), "skipped": skipped, "median_us": plans_us.median}
    added = totals[len(names)] - totals[0]
    goals = [Goal(f"{len(names)} shadows add to the p90 of a decision", added, GOAL_US, " us")]
    return report(goals, details, asked.json)


if __name__ == "__main__":
    run_benchmark(main)

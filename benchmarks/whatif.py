"""Compares `gpu-flows whatif` with reality: live workloads run under two policies, and are replayed.

    python benchmarks/whatif.py [--runs 18] [--only NAME] [--keep FILE] [--json FILE]

Each workload runs twice on a private server with a real worker and simulated devices, under policy A and
under policy B, with the same jobs due at the same times. From what is recorded after A, A is replayed and B
is predicted; then B is run and replayed, and A is predicted from its record. The jobs run for 5 to 20
seconds, so that what it takes to launch and to stop them counts.

Goals: the replay of a policy has the makespan and the mean turnaround of reality within 2%, the prediction of
the other policy has those of its real run within 5%. Takes about ten minutes. Exit code 1 when one is missed.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from common import Goal, log_progress, make_parser, report, run_benchmark, wait_until
from live_pool import Api, deploy_command, private_stack

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.analytics.whatif import Choice, Figures, WhatIf, replay

CLUSTER = "1x2:V100:16+1x2:A100:40"
SUBMIT_S = 8.0  # all runs are created in this time, before the first of them is due
GOALS = {"replay": 2.0, "prediction": 5.0}  # percent
FIGURES = ("makespan_s", "avg_turnaround_s")
SLEEP = Path(__file__).with_name("resumable_sleep.py")
ENDED = "select count(*) from job_history where experiment = $experiment and state = 'ended'"


@dataclass(frozen=True)
class PlannedJob:
    at_s: float
    seconds: float
    variables: Mapping[str, Any]
    epochs: int = 1

    @property
    def command(self) -> str:
        return f"{sys.executable} -S {SLEEP} {self.seconds} {self.epochs}"


@dataclass(frozen=True)
class Live:
    """A workload, and the policies that it runs under."""

    name: str
    policies: tuple[Choice, Choice]
    protection: Mapping[str, int] = field(default_factory=dict)  # empty: the default, 60 s

    def jobs(self, count: int) -> Iterator[PlannedJob]:
        draw, at_s = random.Random(self.name), 0.0
        for number in range(count):
            seconds = round(draw.uniform(5, 20), 1)
            variables: dict[str, Any] = {"gpus": draw.choice((1, 1, 1, 2)), "expected_seconds": seconds}
            if self.name == "constraints" and number % 3 == 0:
                variables["gpu_models"] = [draw.choice(("V100", "A100"))]
            if self.name == "preemptive":
                variables["priority_class"] = draw.choice(("low", "normal", "normal", "high"))
            epochs = 1
            if self.name == "progress":  # what their owners state is wrong, and their output tells it
                seconds, epochs = round(2 * seconds, 1), 10
                variables["expected_seconds"] = round(draw.uniform(5, 60), 1)
            yield PlannedJob(at_s, seconds, variables, epochs)
            at_s += draw.uniform(0.5, 3.0)


WORKLOADS = (
    Live("durations", (Choice("fifo"), Choice("srtf"))),
    Live("constraints", (Choice("fifo", {"skip": True}), Choice("round_robin"))),
    Live("preemptive", (Choice("fifo"), Choice("priority")), {"min_run_seconds": 3, "most_preemptions": 0}),
    Live(
        "shortest",
        (Choice("sjf"), Choice("srtf")),
        {"min_run_seconds": 2, "most_preemptions": 3},
    ),
    Live("progress", (Choice("fifo"), Choice("srtf")), {"min_run_seconds": 10, "most_preemptions": 0}),
)


def main() -> int:
    parser = make_parser(__doc__ or "", 18, "jobs of each workload")
    parser.add_argument(
        "--only", metavar="NAME", help="one workload: " + ", ".join(w.name for w in WORKLOADS)
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the warehouse as this file")
    args = parser.parse_args()
    goals: list[Goal] = []
    details: dict[str, Any] = {}
    with private_stack(CLUSTER) as stack:
        stack.start_worker()
        api, warehouse = Api(stack.api_url), stack.home / "warehouse.duckdb"
        deployment = deploy_command(api, stack.pool)
        for live in WORKLOADS:
            if args.only in (None, live.name):
                found = []
                for policy, other in (live.policies, live.policies[::-1]):
                    run_live(api, deployment, warehouse, live, policy, args.runs)
                    experiment = name_experiment(live, policy)
                    found.append(replay(warehouse, policies=[other], experiment=experiment))
                details[live.name] = judge(live, found[0], found[1], goals)
        if args.keep:
            shutil.copy(warehouse, args.keep)
    return report(goals, details, args.json)


def run_live(api: Api, deployment: str, warehouse: Path, live: Live, policy: Choice, count: int) -> None:
    """Run the jobs of the workload under the policy, as an experiment of its own."""
    data: dict[str, Any] = {"policy": policy.name, "options": {policy.name: policy.options}}
    if live.protection:
        data["protection"] = live.protection
    block = api.get("/block_types/slug/gpu-scheduler/block_documents/name/default")["id"]
    api.patch(f"/block_documents/{block}", {"data": data, "merge_existing_data": False})
    time.sleep(5)  # until the pool has read it
    experiment = name_experiment(live, policy)
    log_progress(f"{experiment}: {count} jobs")
    began = datetime.now(UTC) + timedelta(seconds=SUBMIT_S)
    for job in live.jobs(count):
        due = {"scheduled_time": (began + timedelta(seconds=job.at_s)).isoformat()}
        body = {
            "parameters": {"command": "unused"},
            "job_variables": {"command": job.command, **job.variables},
            "tags": [f"experiment:{experiment}"],
            "state": {"type": "SCHEDULED", "state_details": due},
        }
        api.post(f"/deployments/{deployment}/create_flow_run", body)

    def all_ended() -> bool:
        try:
            return run_query(warehouse, ENDED, {"experiment": experiment}).rows == [(count,)]
        except QueryError:  # the recorder is writing
            return False

    wait_until(all_ended, f"all jobs of {experiment} have ended", 900, every_s=2.0)


def name_experiment(live: Live, policy: Choice) -> str:
    return f"{live.name}-{policy.name}"


def judge(live: Live, from_first: WhatIf, from_second: WhatIf, goals: list[Goal]) -> dict[str, Any]:
    """Print both runs side by side, and add the goals."""
    first, second = live.policies
    print(f"\n{live.name}: {first.name} and {second.name}")
    print(f"{'':<34}{'makespan':>20}{'mean turnaround':>20}{'queueing':>10}{'preempted':>10}")
    for own, other in ((from_first, from_second), (from_second, from_first)):
        name = own.replayed.label
        real, predicted = own.recorded.figures, other.alternatives[0].figures
        _print_row(f"{name}: reality", real)
        _print_row(f"{name}: replayed", own.replayed.figures, real)
        _print_row(f"{name}: predicted from {other.replayed.label}", predicted, real)
        for kind, figures in (("replay", own.replayed.figures), ("prediction", predicted)):
            for figure in FIGURES:
                label = f"{live.name}: {kind} of {name}, {figure.removesuffix('_s')}"
                goals.append(Goal(label, _error(figures, real, figure), GOALS[kind], " %"))
    for note in from_second.known:
        print(f"  {note}")
    return {"from_first": _describe(from_first), "from_second": _describe(from_second)}


def _print_row(label: str, figures: Figures, real: Figures | None = None) -> None:
    cells = ""
    for figure in FIGURES:
        off = f"{_signed_error(figures, real, figure):+.2f}%" if real else ""
        cells += f"{getattr(figures, figure):>12.2f}{off:>8}"
    print(f"{label:<34}{cells}{figures.avg_queueing_s:>10.2f}{figures.preemptions:>10}")


def _error(figures: Figures, real: Figures, figure: str) -> float:
    return abs(_signed_error(figures, real, figure))


def _signed_error(figures: Figures, real: Figures, figure: str) -> float:
    return 100 * (getattr(figures, figure) / getattr(real, figure) - 1)


def _describe(found: WhatIf) -> dict[str, Any]:
    scenarios = (found.recorded, found.replayed, *found.alternatives)
    return {"known": found.known, **{each.label: asdict(each.figures) for each in scenarios}}


if __name__ == "__main__":
    run_benchmark(main)

"""Compares our `gavel` policy with Gavel's own simulator: results and CPU time on its own traces.

    python benchmarks/gavel.py [--runs 3] [--json FILE]

The two traces that Gavel ran on 48 physical GPUs ship with the tests. Each case runs in a process of its own,
which reads the trace and simulates it; its CPU time, including start-up, is the least of the runs. Gavel's
figures were measured with its own simulator on a machine like the one in docs/benchmarks.md. Goals: results
within 2% (makespans within 4% if the policy ignores speeds, since they are random then), and at most a third
of Gavel's CPU time. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from common import Goal, log_progress, make_parser, report, run_benchmark

TRACES = Path(__file__).parents[1] / "tests" / "traces" / "gavel"


class Case(NamedTuple):
    trace: str
    options: dict[str, Any]
    turnaround_s: float  # Gavel's results
    makespan_s: float
    cpu_s: float


CASES = [
    Case("minimize_makespan", {"aware": False}, 33_193, 80_738, 4.0),
    Case("minimize_makespan", {}, 33_347, 67_093, 3.4),
    Case("minimize_makespan", {"objective": "min_makespan"}, 61_369, 62_657, 3.7),
    Case("minimize_makespan", {"objective": "min_makespan", "aware": False}, 69_156, 74_561, 4.2),
    Case("max_min_fairness", {"aware": False}, 18_705, 70_929, 3.3),
    Case("max_min_fairness", {}, 13_766, 61_591, 2.7),
]

RUN = """
import json, resource, sys
from pathlib import Path
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.profiles import Profile
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.traces.gavel import throughputs

folder, trace, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
measured = folder / "solo_throughputs.json"
arrivals = load(folder / f"{trace}.trace", throughputs=measured).arrivals
conditions = Conditions(Profile(throughputs(json.loads(measured.read_text())), "v100"))
nodes = declare("2x4:v100+4x4:p100+3x8:k80")
jobs = simulate(arrivals, nodes, make_policy("gavel", options), conditions).jobs
used = resource.getrusage(resource.RUSAGE_SELF)
turnaround = sum(job.turnaround_s for job in jobs) / len(jobs)
print(json.dumps([turnaround, max(job.ended for job in jobs), used.ru_utime]))
"""


def run(case: Case) -> tuple[float, float, float]:
    """Return mean turnaround, makespan, and CPU seconds of the whole process."""
    command = [sys.executable, "-c", RUN, str(TRACES), case.trace, json.dumps(case.options)]
    turnaround, makespan, cpu = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return turnaround, makespan, cpu


def main() -> int:
    args = make_parser(__doc__ or "", 3, "runs of each case; the fastest counts").parse_args()
    goals: list[Goal] = []
    details: dict[str, Any] = {}
    print(f"{'trace':<20}{'options':<46}{'turnaround (theirs)':>21}{'makespan (theirs)':>21}{'CPU s':>13}")
    for case in CASES:
        log_progress(f"{case.trace} {case.options}")
        turnaround, makespan, cpu = min((run(case) for _ in range(args.runs)), key=lambda result: result[2])
        results = f"{turnaround:,.0f} ({case.turnaround_s:,})", f"{makespan:,.0f} ({case.makespan_s:,})"
        options = json.dumps(case.options) if case.options else "max_min, aware"
        print(f"{case.trace:<20}{options:<46}{results[0]:>21}{results[1]:>21}{cpu:>7.2f} ({case.cpu_s})")
        blind = not case.options.get("aware", True)
        name = f"{case.trace}{', blind' if blind else ''}{', min' if 'objective' in case.options else ''}"
        goals += [
            Goal(f"{name}: turnaround off by", 100 * abs(turnaround / case.turnaround_s - 1), 2, " %"),
            Goal(
                f"{name}: makespan off by", 100 * abs(makespan / case.makespan_s - 1), 4 if blind else 2, " %"
            ),
            Goal(f"{name}: part of Gavel's CPU", cpu / case.cpu_s, 1 / 3),
        ]
        details[name] = {"turnaround_s": turnaround, "makespan_s": makespan, "cpu_s": cpu}
    return report(goals, details, args.json)


if __name__ == "__main__":
    run_benchmark(main)

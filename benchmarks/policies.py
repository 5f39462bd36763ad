"""Runs every policy on the same public trace and prints the table of docs/policies.md.

    python benchmarks/policies.py [--trace FILE] [--cluster 100x4] [--placement any] [--limit N]
        [--policies NAME[:option=value],...] [--patience 300] [--write docs/policies.md]

The default trace ships with the tests: 5,000 jobs of Microsoft's Philly cluster, here on 400 GPUs. Durations
are known to the policies that need them. A policy that takes more than --patience seconds is stopped, and its
row states that. --write puts the table between the marks of that file. The bounds are proven: no policy can
be below them.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import log_progress, make_parser, report, run_benchmark, write_between

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.policy import policies as all_policies
from gpu_flows.schedulers.simulation.bounds import Bounds, bounds
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import summarize
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival, allow_spanning

SHIPPED = Path(__file__).parents[1] / "tests" / "traces" / "philly" / "philly5k.csv.gz"
VARIANTS = ("fifo:skip=true", "srtf:by=service", "tiresias:discipline=gittins", "edf:preemptive=false")
HEADING = {  # column -> figure of the summary
    "mean turnaround": "avg_turnaround_s",
    "median": "p50_turnaround_s",
    "p99": "p99_turnaround_s",
    "mean queueing": "avg_queueing_s",
    "makespan": "makespan_s",
    "allocation": "allocation",
    "preemptions": "preemptions",
    "CPU s": "cpu_s",
}


def list_policies() -> list[str]:
    """Return each policy with its defaults, and variants that other projects count as policies."""
    return sorted([*all_policies(), *VARIANTS])


def run(label: str, arrivals: list[Arrival], cluster: str, placement: str, result: Any) -> None:
    """Simulate and put the summary in the queue `result`. Runs in a process that can be killed."""
    name, _, written = label.partition(":")
    options: dict[str, Any] = dict(pair.split("=") for pair in written.split(",") if pair)
    if "placement" in all_policies()[name].Options.model_fields:
        options.setdefault("placement", placement)
    began = time.process_time()
    found = simulate(arrivals, declare(cluster), make_policy(name, options))
    result.put({**asdict(summarize(found)), "cpu_s": time.process_time() - began})


def run_with_timeout(label: str, timeout_s: float, *arguments: Any) -> dict[str, Any] | None:
    """Return the summary of a policy; None if it takes longer than the timeout."""
    result: Any = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=run, args=(label, *arguments, result))
    process.start()
    process.join(timeout_s)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    if process.exitcode:
        raise SystemExit(f"{label} failed.")
    return dict(result.get())


def make_table(rows: dict[str, dict[str, Any] | None], limits: Bounds, timeout_s: float) -> list[str]:
    """Return a Markdown table, the shortest mean turnaround first."""
    best = {"avg_turnaround_s": limits.mean_turnaround_s, "makespan_s": limits.makespan_s}
    done = {label: row for label, row in rows.items() if row}
    lines = [
        f"| policy | {' | '.join(HEADING)} |",
        f"|---{'|--:' * len(HEADING)}|",
        f"| *proven lower bound* | {' | '.join(_format_cell(c, best.get(c)) for c in HEADING.values())} |",
    ]
    for label in sorted(done, key=lambda label: float(done[label]["avg_turnaround_s"])):
        lines.append(f"| {label} | {' | '.join(_format_cell(c, done[label][c]) for c in HEADING.values())} |")
    stopped = f"not done after {timeout_s:.0f} s" + " |" * (len(HEADING) - 1)
    return lines + [f"| {label} | {stopped} |" for label, row in rows.items() if row is None]


def _format_cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if column == "allocation" else f"{value:,.{int(column == 'cpu_s')}f}"


def main() -> int:
    parser = make_parser(__doc__ or "", 1, "not used: the results are exact")
    parser.add_argument("--trace", type=Path, default=SHIPPED)
    parser.add_argument("--cluster", default="100x4")
    parser.add_argument("--placement", default="any")
    parser.add_argument("--limit", type=int, help="only the first jobs")
    parser.add_argument("--policies", help="instead of all of them")
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    arrivals = allow_spanning(load(args.trace, limit=args.limit).arrivals)
    rows: dict[str, dict[str, Any] | None] = {}
    for label in args.policies.split(",") if args.policies else list_policies():
        log_progress(label)
        rows[label] = run_with_timeout(label, args.patience, arrivals, args.cluster, args.placement)
    lines = make_table(rows, bounds(arrivals, declare(args.cluster)), args.patience)
    print("\n".join(lines))
    if args.write:
        write_between(args.write, "table", lines)
    return report([], {"rows": rows}, args.json)


if __name__ == "__main__":
    run_benchmark(main)

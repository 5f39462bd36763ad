"""Every policy on the same public trace: the table of docs/policies.md, by one command.

    python benchmarks/policies.py [--trace FILE] [--cluster 100x4] [--placement any] [--limit N]
        [--policies NAME[:option=value],...] [--patience 300] [--write docs/policies.md]

The default trace ships with the tests: 5,000 jobs of Microsoft's Philly cluster, here on 400 GPUs. Durations
are known to the policies that ask for them. A policy that takes more than --patience seconds is stopped, and
its row says so. --write puts the table between the marks of that file. The bounds are proven: no policy,
whatever it knows, can be below them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import arguments, carry_out, conclude, say

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.policy import policies as all_policies
from gpu_flows.schedulers.simulation.bounds import Bounds, bounds
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import summarize
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival, allow_spanning

SHIPPED = Path(__file__).parents[1] / "tests" / "traces" / "philly" / "philly5k.csv.gz"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
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


def everything() -> list[str]:
    """Each policy as it comes, and the variants that are policies of their own elsewhere."""
    return sorted([*all_policies(), *VARIANTS])


def run(label: str, arrivals: list[Arrival], cluster: str, placement: str, answer: Any) -> None:
    """In a process of its own, so that it can be stopped."""
    name, _, written = label.partition(":")
    options: dict[str, Any] = dict(pair.split("=") for pair in written.split(",") if pair)
    if "placement" in all_policies()[name].Options.model_fields:
        options.setdefault("placement", placement)
    began = time.process_time()
    found = simulate(arrivals, declare(cluster), make_policy(name, options))
    answer.put({**asdict(summarize(found)), "cpu_s": time.process_time() - began})


def patiently(label: str, patience_s: float, *asked: Any) -> dict[str, Any] | None:
    answer: Any = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=run, args=(label, *asked, answer))
    process.start()
    process.join(patience_s)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    if process.exitcode:
        raise SystemExit(f"{label} failed.")
    return dict(answer.get())


def table(rows: dict[str, dict[str, Any] | None], limits: Bounds, patience_s: float) -> list[str]:
    """Markdown, the shortest mean turnaround first."""
    best = {"avg_turnaround_s": limits.mean_turnaround_s, "makespan_s": limits.makespan_s}
    done = {label: row for label, row in rows.items() if row}
    lines = [
        f"| policy | {' | '.join(HEADING)} |",
        f"|---{'|--:' * len(HEADING)}|",
        f"| *proven lower bound* | {' | '.join(_cell(c, best.get(c)) for c in HEADING.values())} |",
    ]
    for label in sorted(done, key=lambda label: float(done[label]["avg_turnaround_s"])):
        lines.append(f"| {label} | {' | '.join(_cell(c, done[label][c]) for c in HEADING.values())} |")
    given_up = f"not done after {patience_s:.0f} s" + " |" * (len(HEADING) - 1)
    return lines + [f"| {label} | {given_up} |" for label, row in rows.items() if row is None]


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if column == "allocation" else f"{value:,.{int(column == 'cpu_s')}f}"


def write(path: Path, lines: Sequence[str]) -> None:
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text("\n".join([before + BEGIN, *lines, END + after]))


def main() -> int:
    parser = arguments(__doc__ or "", 1, "not used: the answers are exact")
    parser.add_argument("--trace", type=Path, default=SHIPPED)
    parser.add_argument("--cluster", default="100x4")
    parser.add_argument("--placement", default="any")
    parser.add_argument("--limit", type=int, help="only the first so many jobs")
    parser.add_argument("--policies", help="instead of all of them")
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    asked = parser.parse_args()
    arrivals = allow_spanning(load(asked.trace, limit=asked.limit).arrivals)
    rows: dict[str, dict[str, Any] | None] = {}
    for label in asked.policies.split(",") if asked.policies else everything():
        say(label)
        rows[label] = patiently(label, asked.patience, arrivals, asked.cluster, asked.placement)
    lines = table(rows, bounds(arrivals, declare(asked.cluster)), asked.patience)
    print("\n".join(lines))
    if asked.write:
        write(asked.write, lines)
    return conclude([], {"rows": rows}, asked.json)


if __name__ == "__main__":
    carry_out(main)

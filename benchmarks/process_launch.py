"""Measures what the supervisor of a process job costs, compared with a shell that becomes the job.

    python benchmarks/process_launch.py [--runs 60]

Each round launches `date` each way, in turns: under the supervisor, and by the shell script that gpu-flows
used before 0.4, which stored its pid and then became the job. A launch is timed from the call that starts the
process until `date` reads the clock. "bare" is a process without either, for comparison. The goal is a
difference and not a ratio: it must be small beside the claim of a run and the start of a flow.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from common import SPREAD_HEADING, Goal, Spread, make_parser, report, run_benchmark

from gpu_flows.runtimes.process import supervise

MOST_MS = 50.0  # more than the shell; about as long as one request to the server
WARM_UP = 3
SHELL = """
start_time="$(cut -d ' ' -f 22 /proc/$$/stat 2>/dev/null) $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "$$ $start_time" >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && [ ! -e "$0/fence" ] && exec "$@"
exit 75
"""


def launch(way: str, folder: Path) -> float:
    """Return the seconds until the job runs."""
    (folder / "attempt.json").write_text("{}")
    programs = {
        "bare": [],
        "shell": ["/bin/sh", "-c", SHELL, str(folder)],
        "supervisor": supervise(folder, 0.0),
    }
    began = time.time()
    done = subprocess.run(
        [*programs[way], "date", "+%s.%N"], stdout=subprocess.PIPE, check=True, start_new_session=True
    )
    return float(done.stdout) - began


def main() -> int:
    parser = make_parser(str(__doc__), 60, "launches each way")
    options = parser.parse_args()
    took: dict[str, list[float]] = {"bare": [], "shell": [], "supervisor": []}
    for round_number in range(options.runs + WARM_UP):
        for way, times in took.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds = launch(way, Path(folder))
            if round_number >= WARM_UP:
                times.append(seconds)
    spreads = {way: Spread.of(times) for way, times in took.items()}
    print(f"{'milliseconds until the job runs':<34}{SPREAD_HEADING}")
    for way, spread in spreads.items():
        print(f"{way:<34}{spread.text(1000, 1)}")
    more_ms = 1000 * (spreads["supervisor"].median - spreads["shell"].median)
    goals = [Goal("supervisor, more than the shell", more_ms, MOST_MS, " ms")]
    return report(goals, {"spreads": {way: asdict(spread) for way, spread in spreads.items()}}, options.json)


if __name__ == "__main__":
    run_benchmark(main)

"""What the recorder costs: loading a backlog, and recording eight devices.

    python benchmarks/recorder.py [--samples 100000] [--seconds 20] [--history 700000] [--json]

Prints each figure, its limit and their ratio (below 1 is good). Exit code 1 when one is over.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_flows.analytics.facts import DeviceSeen, Sampled
from gpu_flows.analytics.recorder import Recorder

DEVICES = [f"GPU-{number:08x}-1111-2222-3333-444444444444" for number in range(8)]
START = 1_700_000_000.0  # of the generated history


@dataclass(frozen=True)
class Figure:
    """A measured value and its limit."""

    what: str
    measured: float
    limit: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.measured / self.limit


def samples(second: float) -> list[Sampled]:
    """Return one reading of each device."""
    return [
        Sampled(second, device, (second * 7 + number * 13) % 101, 8_000.0 + number, 180.5, 61.0)
        for number, device in enumerate(DEVICES)
    ]


def drain_backlog(folder: Path, count: int) -> Figure:
    """Time the way from facts in spool files to committed rows."""
    recorder = Recorder(folder / "warehouse.duckdb", folder / "spool")
    recorder.drain()  # the schema is created only once
    for second in range(count // len(DEVICES)):
        recorder.write(*samples(START + second))
    recorder.flush()
    began = time.perf_counter()
    drained = recorder.drain()
    took = time.perf_counter() - began
    if not drained:
        sys.exit(recorder.trouble)
    recorder.close()
    return Figure(f"drain {count:,} samples", took, 1.0, "s")


def keep_up(folder: Path, seconds: int, history: int) -> Figure:
    """Measure the share of one core for recording eight devices at 1 Hz into a warehouse with rows. All of
    this process counts; it does nothing else meanwhile."""
    recorder = Recorder(folder / "warehouse.duckdb", folder / "spool")
    recorder.write(*(DeviceSeen(d, "bench", "node", n, "GPU", 11_000, START) for n, d in enumerate(DEVICES)))
    for second in range(history // len(DEVICES)):
        recorder.write(*samples(START + second))
    recorder.drain()
    while recorder.age_samples(datetime.now(UTC)):
        pass  # a day is rolled up, as in a worker that has run for that long
    recorder.start()
    began, cpu = time.monotonic(), time.process_time()
    for second in range(seconds):
        time.sleep(max(0.0, began + second - time.monotonic()))
        recorder.write(*samples(time.time()))
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    recorder.close()
    return Figure(f"8 devices at 1 Hz over {history:,} rows", 100 * share, 2.0, "% of a core")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100_000, help="size of the backlog")
    parser.add_argument("--seconds", type=int, default=20, help="how long to sample")
    parser.add_argument(
        "--history", type=int, default=700_000, help="samples already there, a day by default"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per figure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        figures = [
            drain_backlog(Path(one), options.samples),
            keep_up(Path(other), options.seconds, options.history),
        ]
    for figure in figures:
        if options.json:
            print(json.dumps({**asdict(figure), "ratio": figure.ratio}))
        else:
            print(
                f"{figure.what:42} {figure.measured:7.3f} {figure.unit:12} limit {figure.limit:g}"
                f"   ratio {figure.ratio:.2f}"
            )
    return int(any(figure.ratio > 1 for figure in figures))


if __name__ == "__main__":
    sys.exit(main())

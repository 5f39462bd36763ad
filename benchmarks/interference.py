"""How well slowdowns of unmeasured pairs of jobs are predicted, judged on Gavel's measured pairs.

    python benchmarks/interference.py simulation_throughputs.json [--write] [--check] [--json FILE]

The file is Gavel's table of throughputs (github.com/stanford-futuredata/gavel, MIT licence): steps a second
of 26 kinds of jobs, alone and beside each other, on K80, P100 and V100. A slowdown is the rate alone over the
rate beside the other. Every pair is left out in turn, in both directions, and predicted from all the others;
beside it stands a guess of the same median for all pairs. --write renews the data that the product starts
with.

Goals: a median error of at most 8% over all pairs and GPU models, and a prediction in under 50 microseconds.
With --check the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from ast import literal_eval
from collections.abc import Sequence
from pathlib import Path

from common import Goal, Spread, report, run_benchmark

from gpu_flows.schedulers.prediction.interference import Interference, PairExcess

DATA = Path(__file__).parents[1] / "schedulers" / "prediction" / "gavel_pairs.json"
LICENCE = Path(__file__).parents[1] / "tests" / "traces" / "gavel" / "LICENSE"
SOURCE = "github.com/stanford-futuredata/gavel, simulation_throughputs.json, commit c4fa400"


def read_pairs(path: Path) -> list[PairExcess]:
    """Return the pairs on one device of each kind; without those that do not fit together."""
    pairs = []
    for model, rates in json.loads(path.read_text(encoding="utf-8")).items():
        if model.endswith("_unconsolidated"):  # the same as the others on one device
            continue
        for job, measured in rates.items():
            kind, gpus = literal_eval(job)
            for other, both in measured.items():
                if gpus == 1 and other != "null" and measured["null"] and both[0]:
                    beside, _ = literal_eval(other)
                    pairs.append(PairExcess(model, kind, beside, measured["null"] / both[0] - 1.0))
    return pairs


def write_data(pairs: Sequence[PairExcess]) -> None:
    kinds = sorted({pair.kind for pair in pairs})
    slowdowns = {(pair.model, pair.kind, pair.beside): round(1.0 + pair.excess, 3) for pair in pairs}
    tables = {
        model: [[slowdowns.get((model, kind, beside)) for beside in kinds] for kind in kinds]
        for model in sorted({pair.model for pair in pairs})
    }
    about = {
        "source": SOURCE,
        "licence": LICENCE.read_text(encoding="utf-8"),
        "made_by": "benchmarks/interference.py --write",
    }
    rows = {
        model: "[\n   " + ",\n   ".join(json.dumps(row) for row in table) + "\n  ]"
        for model, table in tables.items()
    }
    tables_text = ",\n  ".join(f"{json.dumps(model)}: {text}" for model, text in rows.items())
    head = json.dumps({**about, "kinds": kinds}, indent=1)[:-2]
    DATA.write_text(f'{head},\n "slowdowns": {{\n  {tables_text}\n }}\n}}\n', encoding="utf-8")


def leave_out_errors(pairs: Sequence[PairExcess], model: str) -> list[float]:
    """Return the relative errors of all slowdowns on the model, each predicted without its pair."""
    here = [pair for pair in pairs if pair.model == model]
    errors = []
    for names in sorted({tuple(sorted((pair.kind, pair.beside))) for pair in here}):
        left_out = [pair for pair in here if tuple(sorted((pair.kind, pair.beside))) == names]
        known = Interference(pair for pair in here if pair not in left_out)
        for pair in left_out:
            predicted = known.slowdown(pair.kind, (pair.beside,), model)
            errors.append(abs(predicted / (1.0 + pair.excess) - 1.0))
    return errors


def measure_prediction(pairs: Sequence[PairExcess]) -> float:
    """Return the seconds of one prediction that was not made before, after the first on the model: the mean
    over all kinds, and the least of three such means."""
    kinds = sorted({pair.kind for pair in pairs})
    means = []
    for _ in range(3):
        known = Interference(pairs)
        known.slowdown("unknown", ("unknown",), "V100")
        began = time.perf_counter()
        for kind in kinds:
            for other in kinds:
                known.slowdown(kind, (other, "unknown"), "V100")
        means.append((time.perf_counter() - began) / len(kinds) ** 2)
    return min(means)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("throughputs", type=Path, help="Gavel's simulation_throughputs.json")
    parser.add_argument("--write", action="store_true", help=f"renew {DATA.name}")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file too")
    args = parser.parse_args()
    pairs = read_pairs(args.throughputs)
    if args.write:
        write_data(pairs)
    everything: list[float] = []
    details: dict[str, object] = {}
    print(f"{'GPU':<8}{'slowdowns':>10}{'median':>10}{'p90':>8}{'one guess for all: median':>28}{'p90':>8}")
    for model in sorted({pair.model for pair in pairs}):
        errors = leave_out_errors(pairs, model)
        slowdowns = [1.0 + pair.excess for pair in pairs if pair.model == model]
        middle = statistics.median(slowdowns)
        guessed = Spread.of([abs(middle / slowdown - 1.0) for slowdown in slowdowns])
        spread = Spread.of(errors)
        everything += errors
        details[model] = {"median": spread.median, "p90": spread.p90}
        print(
            f"{model:<8}{len(errors):>10}{spread.median:>10.1%}{spread.p90:>8.1%}"
            f"{guessed.median:>28.1%}{guessed.p90:>8.1%}"
        )
    goals = [
        Goal("median error of a pair left out", 100 * statistics.median(everything), 8.0, " %"),
        Goal("time of a prediction", 1e6 * measure_prediction(pairs), 50.0, " us"),
    ]
    missed = report(goals, details, args.json)
    return missed if args.check else 0


if __name__ == "__main__":
    run_benchmark(main)

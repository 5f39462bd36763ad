"""How well the network tables agree with what others have simulated and measured.

    python benchmarks/network.py --tiers network_tier_slowdowns.csv --gavel simulation_throughputs.json

--tiers: runs of ASTRA-sim with the network constants of Dally's simulator, as a CSV with model, gpus,
units_bottom_up, bandwidth_GBps, compute_us and exposed_comm_us. The table `dally` is a compact model of them.
--gavel: Gavel's table of throughputs (github.com/stanford-futuredata/gavel): steps a second of jobs on one
node and spread over nodes. How its machines were connected is not stated, so beside the table `realistic`
stands the same table with the bandwidth between nodes that fits best.

Goals: the median of the ratio of both times within 5% for `dally`, the worst within 20%. With --check the
exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from ast import literal_eval
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import Goal, report, run_benchmark

from gpu_flows.schedulers.network.network import Network
from gpu_flows.schedulers.network.shape import Shape
from gpu_flows.schedulers.network.tables import load_network

TIERS_BY_BANDWIDTH = {"600": "node", "200": "rack", "400": "cluster"}  # GB/s of Dally's levels
GAVEL_KINDS = ("ResNet-18", "ResNet-50")  # whose sizes the tables state
LEAST_SLOWDOWN = 0.95  # Gavel measured some jobs faster on several nodes, which no network explains


# -- the table of Dally -----------------------------------------------------------------------


def compare_tiers(path: Path, network: Network) -> dict[str, list[tuple[float, float]]]:
    """Return for each model the simulated slowdowns, and the ratios of our times to the simulated times."""
    found: dict[str, list[tuple[float, float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            compute_s, exposed_s = 1e-6 * float(row["compute_us"]), 1e-6 * float(row["exposed_comm_us"])
            traffic = network.compute_traffic(network.models.find(row["model"]), read_shape(row))
            ratio = traffic.iteration_s() / (compute_s + exposed_s)
            found.setdefault(row["model"], []).append((1 + exposed_s / compute_s, ratio))
    return found


def read_shape(row: dict[str, str]) -> Shape:
    """Return the shape in which every group has as many members as the row's levels state. Levels inside a
    machine count as one."""
    members = {"node": 1, "rack": 1, "cluster": 1}
    for units, bandwidth in zip(
        row["units_bottom_up"].split("x"), row["bandwidth_GBps"].split("/"), strict=True
    ):
        members[TIERS_BY_BANDWIDTH[bandwidth]] *= int(units)
    return ((members["node"],) * members["rack"],) * members["cluster"]


def show_tiers(found: dict[str, list[tuple[float, float]]]) -> list[Goal]:
    print("Table dally: our time of an iteration over that of ASTRA-sim")
    print(f"{'model':<14}{'runs':>5}{'largest slowdown':>18}{'median':>9}{'least':>8}{'most':>8}")
    everything = [pair for pairs in found.values() for pair in pairs]
    for model, pairs in [*sorted(found.items()), ("all", everything)]:
        ratios = [ratio for _, ratio in pairs]
        largest = max(slowdown for slowdown, _ in pairs)
        print(
            f"{model:<14}{len(pairs):>5}{largest:>18,.1f}{statistics.median(ratios):>9.3f}"
            f"{min(ratios):>8.3f}{max(ratios):>8.3f}"
        )
    ratios = [ratio for _, ratio in everything]
    worst = max(max(ratio, 1 / ratio) for ratio in ratios)
    return [
        Goal("dally: distance of the median ratio from 1", abs(statistics.median(ratios) - 1), 0.05),
        Goal("dally: distance of the worst ratio from 1", worst - 1, 0.20),
    ]


# -- Gavel's measurements ---------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A kind of job on several devices of a model, on one node and spread over nodes."""

    device: str
    kind: str
    gpus: int
    compute_s: float  # a step on one device
    slowdown: float


def read_gavel(path: Path) -> Iterator[Measured]:
    content = json.loads(path.read_text(encoding="utf-8"))
    for device, rates in content.items():
        spread = content.get(f"{device}_unconsolidated", {})
        for job, measured in rates.items():
            kind, gpus = literal_eval(job)
            alone, together = rates[str((kind, 1))]["null"], measured["null"]
            apart = spread.get(job, {}).get("null")
            if gpus > 1 and kind.startswith(GAVEL_KINDS) and alone and together and apart:
                yield Measured(device, kind, gpus, 1 / alone, together / apart)


def predict(network: Network, row: Measured) -> float:
    """Return the slowdown on one device of each node, with the computing time that Gavel measured."""
    model = replace(network.models.find(row.kind), compute_s=row.compute_s)
    return network.compute_traffic(model, ((1,) * row.gpus,)).slowdown()


def fit_bandwidth(network: Network, rows: Sequence[Measured]) -> Network:
    """Return the network with the bandwidth between nodes that has the least median error."""

    def with_bandwidth(gbits_per_s: float) -> Network:
        return replace(network, rack=replace(network.rack, bandwidth=gbits_per_s / 8 * 1e9, capacity=0))

    def median_error(candidate: Network) -> float:
        return statistics.median(abs(predict(candidate, row) / row.slowdown - 1) for row in rows)

    return min((with_bandwidth(step / 2) for step in range(2, 201)), key=median_error)


def show_gavel(rows: Sequence[Measured], network: Network) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for device in dict.fromkeys(row.device for row in rows):
        chosen = [row for row in rows if row.device == device]
        usable = [row for row in chosen if row.slowdown >= LEAST_SLOWDOWN]
        if not usable:
            print(f"\nGavel measured no slowdown across nodes on {device} ({len(chosen)} rows).")
            continue
        fitted = fit_bandwidth(network, usable)
        gbits = 8e-9 * fitted.rack.bandwidth
        print(f"\nTable realistic: slowdown on one device of each node, {device} of Gavel")
        print(f"{'job':<28}{'GPUs':>5}{'measured':>10}{'realistic':>11}{f'at {gbits:g} Gb/s':>14}")
        for row in chosen:
            predicted = predict(network, row), predict(fitted, row)
            print(
                f"{row.kind:<28}{row.gpus:>5}{row.slowdown:>10.2f}{predicted[0]:>11.2f}{predicted[1]:>14.2f}"
            )
        errors = {
            name: statistics.median(abs(predict(each, row) / row.slowdown - 1) for row in usable)
            for name, each in (("realistic", network), ("fitted", fitted))
        }
        print(
            f"{len(usable)} of {len(chosen)} slowed: median error {errors['realistic']:.0%} as shipped, "
            f"{errors['fitted']:.0%} at {gbits:g} Gb/s"
        )
        figures[device] = {"rows": len(chosen), "slowed": len(usable), "gbits_per_s": gbits, **errors}
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiers", type=Path, required=True, metavar="FILE", help="runs of ASTRA-sim")
    parser.add_argument("--gavel", type=Path, required=True, metavar="FILE", help="Gavel's throughputs")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file too")
    args = parser.parse_args()
    goals = show_tiers(compare_tiers(args.tiers, load_network("dally")))
    figures = show_gavel(list(read_gavel(args.gavel)), load_network("realistic"))
    missed = report(goals, {"gavel": figures}, args.json)
    return missed if args.check else 0


if __name__ == "__main__":
    run_benchmark(main)

"""Repeats Schedulearn's experiment: FIFO against Round Robin on 3 servers with 4 GPUs each.

    python benchmarks/schedulearn.py [--interference 0.1] [--runs 20] [--json FILE]

It uses Schedulearn's submission strategies (5, 10, 15 and 20 jobs at once) and measured times per number of
GPUs, with our fifo and round_robin on shared devices, as Schedulearn placed jobs. It prints the change from
FIFO to Round Robin next to the published one. The paper does not state how many GPUs each MNIST job asked for
(here a random number from 1 to 4, averaged over --runs draws) nor how much jobs on one GPU slow each other
down. --interference is the slowdown for each other job. It is small for MNIST jobs, which used 5 to 30% of
the GPUs; ResNet jobs take turns on a shared GPU, which is a slowdown of 1.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from common import make_parser, report, run_benchmark

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN
from gpu_flows.schedulers.simulation.simulator import simulate

STRATEGIES = (5, 10, 15, 20)
PUBLISHED: dict[str, dict[str, dict[int, int]]] = {  # percent, from FIFO to Round Robin
    "pytorch-mnist": {
        "makespan": {5: 0, 10: -21, 15: -10, 20: -23},
        "turnaround": {5: 0, 10: -11, 15: 11, 20: -11},
    },
    "tensorflow-mnist": {
        "makespan": {5: -11, 10: 2, 15: -12, 20: -4},
        "turnaround": {10: -14, 15: -22, 20: -30},
    },
    "mxnet-mnist": {"makespan": {}, "turnaround": {5: -9, 10: -10, 15: 0, 20: -6}},
}
METRICS = ("makespan", "turnaround")
RESNET = "schedulearn:kind=pytorch-resnet,jobs=1,batches=3,every_s=120,gpus=4,gpu_memory_gb=2"
RESNET_PUBLISHED = {"fifo": (574.5, 326.9), "round_robin": (448.0, 209.9)}  # seconds


def compute_means(workload: str, policy: str, interference: float, seeds: int) -> dict[str, float]:
    """Return makespan and mean turnaround, averaged over the draws."""
    spans, turnarounds = [], []
    for seed in range(seeds):
        chosen = make_policy(policy, {"sharing": "shared"})
        conditions = Conditions(SCHEDULEARN, interference=interference)
        jobs = simulate(generate(workload, seed), declare("3x4:GTX 1080 Ti:11"), chosen, conditions).jobs
        spans.append(max(job.arrival.job.submitted + job.turnaround_s for job in jobs))
        turnarounds.append(fmean(job.turnaround_s for job in jobs))
    return {"makespan": fmean(spans), "turnaround": fmean(turnarounds)}


def compute_change(workload: str, interference: float, seeds: int) -> dict[str, float]:
    """Return the change from FIFO to Round Robin in percent."""
    fifo, robin = (compute_means(workload, policy, interference, seeds) for policy in ("fifo", "round_robin"))
    return {name: 100 * (robin[name] / fifo[name] - 1) for name in METRICS}


def main() -> int:
    parser = make_parser(__doc__ or "", 20, "draws that are averaged")
    parser.add_argument("--interference", type=float, default=0.1, help="slowdown per other job on a GPU")
    args = parser.parse_args()
    details: dict[str, Any] = {}
    print("Round Robin against FIFO, ours (published), percent")
    print(f"{'kind':<18}{'metric':<12}" + "".join(f"{jobs:>7} jobs   " for jobs in STRATEGIES))
    for kind, published in PUBLISHED.items():
        ours = {
            jobs: compute_change(
                f"schedulearn:jobs={jobs},kind={kind},gpu_memory_gb=1", args.interference, args.runs
            )
            for jobs in STRATEGIES
        }
        for metric in METRICS:
            cells = [
                f"{ours[jobs][metric]:>+7.0f} ({published[metric][jobs]:+d})"
                if jobs in published[metric]
                else f"{ours[jobs][metric]:>+7.0f} (-)"
                for jobs in STRATEGIES
            ]
            print(f"{kind:<18}{metric:<12}" + "".join(f"{cell:<15}" for cell in cells))
        details[kind] = ours
    print(
        "\nThree ResNet jobs on 4 GPUs each, two minutes apart: makespan and turnaround, ours (published), s"
    )
    for policy, paper in RESNET_PUBLISHED.items():
        found = compute_means(RESNET, policy, 1.0, 1)
        cells = [f"{found[metric]:.1f} ({figure})" for metric, figure in zip(METRICS, paper, strict=True)]
        print(f"{policy:<18}{cells[0]:<20}{cells[1]}")
        details[f"resnet {policy}"] = found
    return report([], details, args.json)


if __name__ == "__main__":
    run_benchmark(main)

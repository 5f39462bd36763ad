"""All cases by name. A case puts load on a pool, breaks something, and counts what went wrong."""

from __future__ import annotations

from collections.abc import Callable

from chaos import container_cases, job_cases, server_cases, worker_cases
from chaos.lab import Lab
from chaos.workload import Counts

CASES: dict[str, Callable[[Lab], Counts]] = {
    case.__name__: case
    for case in (
        worker_cases.killed_workers,
        worker_cases.slow_answers,
        worker_cases.stopped_leaders,
        worker_cases.dead_machines,
        worker_cases.removed_folders,
        server_cases.refused_answers,
        server_cases.failing_answers,
        server_cases.restarted_server,
        server_cases.restarted_database,
        job_cases.swapped_policies,
        job_cases.hostile_policies,
        job_cases.full_disk,
        job_cases.much_output,
        job_cases.double_forks,
        container_cases.raced_mounts,
    )
}
# Cases that show something within seconds; a short version of each is part of `make test`.
SHORT = ("killed_workers", "removed_folders", "refused_answers", "full_disk", "double_forks")


def run_case(name: str, lab: Lab) -> Counts:
    counts = CASES[name](lab)
    counts.rounds = lab.round
    return counts

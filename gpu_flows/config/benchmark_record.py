"""What a benchmark that runs in a pool leaves in a Prefect variable: its run, its policy and the former one.

The command line reads it, so this module does not import Prefect, which takes seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchmarkRecord:
    run_id: str
    run_name: str
    former: str  # the policy that was in the scheduler block before
    block: dict[str, Any] | None  # the former data of the block; None if there was no block
    saved: str  # when the benchmark saved the block last; a later time shows an edit of someone else
    policy: str = ""  # the policy of the present round


def variable_name(pool: str) -> str:
    return "gpu_flows_benchmark_" + re.sub(r"[^a-z0-9_]", "_", pool.lower())


def parse_record(value: object) -> BenchmarkRecord | None:
    try:
        return BenchmarkRecord(**value) if isinstance(value, dict) else None
    except TypeError:
        return None

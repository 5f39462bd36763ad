"""Where gpu-flows keeps its things on this machine: `~/.gpu-flows`, unless GPU_FLOWS_HOME says so."""

from __future__ import annotations

import os
import re
from pathlib import Path

END_WITH_WORKER = "GPU_FLOWS_END_JOBS_WITH_WORKER"  # set for a worker whose server goes away with it


def home() -> Path:
    return Path(os.environ.get("GPU_FLOWS_HOME") or Path.home() / ".gpu-flows").expanduser()


def pool_folder(pool: str) -> Path:
    """A pool's own folder: its attempts, their output, the spool of facts."""
    return home() / "pools" / (re.sub(r"[^A-Za-z0-9._-]", "-", pool).strip(".") or "pool")


def default_warehouse() -> Path:
    return home() / "warehouse.duckdb"

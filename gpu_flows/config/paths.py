"""Where gpu-flows keeps its files on this machine: `~/.gpu-flows`, or the value of GPU_FLOWS_HOME."""

from __future__ import annotations

import os
import re
from pathlib import Path

EXTEND_SERVER = "GPU_FLOWS_SERVER"  # set for a server that the plugin may extend; see prefect_plugin
END_WITH_WORKER = "GPU_FLOWS_END_JOBS_WITH_WORKER"  # set for a worker whose server stops with it


def home() -> Path:
    return Path(os.environ.get("GPU_FLOWS_HOME") or Path.home() / ".gpu-flows").expanduser()


def pool_folder(pool: str) -> Path:
    """Return the pool's folder, which holds its attempts, their output, its checkpoints and its status."""
    return home() / "pools" / (re.sub(r"[^A-Za-z0-9._-]", "-", pool).strip(".") or "pool")


def predictor_folder() -> Path:
    """Return the folder with the learned predictors, which all pools of this machine share."""
    return home() / "predictors"


def weights_folder() -> Path:
    """Return the folder with retrained weights of the policy rl, which all pools of this machine share."""
    return home() / "rl"


def default_warehouse() -> Path:
    return home() / "warehouse.duckdb"

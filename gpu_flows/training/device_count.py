"""How many devices the worker assigned to this job."""

from __future__ import annotations

import json
from collections.abc import Mapping


def count_assigned_devices(environment: Mapping[str, str]) -> int:
    """Return the number of devices; 1 for a training started by hand."""
    try:
        devices = json.loads(environment.get("GPU_FLOWS_DEVICES", "[]"))
        return len(devices) or int(environment.get("GPU_FLOWS_GPUS", "1")) or 1
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"GPU_FLOWS_DEVICES or GPU_FLOWS_GPUS is not what the worker writes ({error}). Unset both."
        ) from None

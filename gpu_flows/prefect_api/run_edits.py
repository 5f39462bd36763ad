"""Tells the worker of a pool that the job variables of a waiting run were edited.

Prefect emits no event for such an edit, so without this the worker notices it at its next poll.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from gpu_flows.common.clock import utc_now

RUN_EDITED = "gpu-flows.run.edited"


def build_edit_event(run_id: str, pool_id: str) -> dict[str, Any]:
    """Return the event to send to the server's `/events`, in a list."""
    return {
        "id": str(uuid4()),
        "event": RUN_EDITED,
        "occurred": utc_now().isoformat(),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run_id}"},
        "related": [
            {"prefect.resource.id": f"prefect.work-pool.{pool_id}", "prefect.resource.role": "work-pool"}
        ],
        "payload": {},
    }

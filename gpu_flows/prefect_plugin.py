"""What Prefect loads from our entry point, in every process that looks up workers or blocks.

Importing it registers the worker type and the blocks; in the server process it also adds our card
to the UI's work-pool wizard. Light on purpose: the heavy libraries come with the worker's start.
"""

from __future__ import annotations

from typing import Any

import gpu_flows.blocks  # noqa: F401  registers the blocks
from gpu_flows.prefect_private import collect_garbage_aside, show_card_in_wizard
from gpu_flows.worker.gpu_worker import GpuWorker


def _card() -> dict[str, Any]:
    return {
        GpuWorker.type: {
            "type": GpuWorker.type,
            "display_name": GpuWorker._display_name,
            "description": GpuWorker.get_description(),
            "logo_url": GpuWorker.get_logo_url(),
            "documentation_url": GpuWorker.get_documentation_url(),
            "install_command": "pip install gpu-flows",
            "is_beta": False,
            "default_base_job_configuration": GpuWorker.get_default_base_job_template(),
        }
    }


show_card_in_wizard("gpu-flows", _card)
collect_garbage_aside()

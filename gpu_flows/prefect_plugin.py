"""The entry point that Prefect loads in every process that looks up workers or blocks.

Importing this module registers the worker type and the blocks. A server that gpu-flows starts also gets a
card in the UI's work-pool wizard, and collects garbage in a thread. Any other server stays as it is, unless
its environment has GPU_FLOWS_SERVER=1. DuckDB, Docker, torch and NVML are imported when the worker starts.
"""

from __future__ import annotations

import os
from typing import Any

import gpu_flows.blocks  # noqa: F401  registers the blocks
from gpu_flows.config.paths import EXTEND_SERVER
from gpu_flows.prefect_private import add_wizard_card, collect_garbage_in_thread
from gpu_flows.worker.gpu_worker import GpuWorker


def _describe_card() -> dict[str, Any]:
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


if os.environ.get(EXTEND_SERVER):
    add_wizard_card("gpu-flows", _describe_card)
    collect_garbage_in_thread()

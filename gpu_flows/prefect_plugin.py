"""The entry point that Prefect loads in every process that looks up workers or blocks.

Importing this module registers the worker type and the blocks. In the server process it also adds a card to
the UI's work-pool wizard. It imports no heavy libraries; the worker loads them when it starts.
"""

from __future__ import annotations

from typing import Any

import gpu_flows.blocks  # noqa: F401  registers the blocks
from gpu_flows.prefect_private import add_wizard_card, collect_garbage_in_thread
from gpu_flows.worker.gpu_worker import GpuWorker

LOGO = (  # a chip with an arrow
    "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 64 64'>"
    "<rect x='12' y='12' width='40' height='40' rx='6' fill='%231f6feb'/>"
    "<path d='M20 4v8M32 4v8M44 4v8M20 52v8M32 52v8M44 52v8M4 20h8M4 32h8M4 44h8M52 20h8M52 32h8M52 44h8' "
    "stroke='%231f6feb' stroke-width='4'/><path d='M25 21l18 11-18 11z' fill='white'/></svg>"
)


def _describe_card() -> dict[str, Any]:
    return {
        GpuWorker.type: {
            "type": GpuWorker.type,
            "display_name": GpuWorker._display_name,
            "description": GpuWorker.get_description(),
            "logo_url": LOGO,
            "documentation_url": "",
            "install_command": "pip install gpu-flows",
            "is_beta": False,
            "default_base_job_configuration": GpuWorker.get_default_base_job_template(),
        }
    }


add_wizard_card("gpu-flows", _describe_card)
collect_garbage_in_thread()

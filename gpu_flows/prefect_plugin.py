"""What Prefect loads from our entry point, in every process that looks up workers or blocks.

Importing it registers the worker type and the blocks; in the server process it also adds our card
to the UI's work-pool wizard. Light on purpose: the heavy libraries come with the worker's start.
"""

from __future__ import annotations

from typing import Any

import gpu_flows.blocks  # noqa: F401  registers the blocks
from gpu_flows.prefect_private import collect_garbage_aside, show_card_in_wizard
from gpu_flows.worker.gpu_worker import GpuWorker

LOGO = (  # a chip with an arrow
    "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 64 64'>"
    "<rect x='12' y='12' width='40' height='40' rx='6' fill='%231f6feb'/>"
    "<path d='M20 4v8M32 4v8M44 4v8M20 52v8M32 52v8M44 52v8M4 20h8M4 32h8M4 44h8M52 20h8M52 32h8M52 44h8' "
    "stroke='%231f6feb' stroke-width='4'/><path d='M25 21l18 11-18 11z' fill='white'/></svg>"
)


def _card() -> dict[str, Any]:
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


show_card_in_wizard("gpu-flows", _card)
collect_garbage_aside()

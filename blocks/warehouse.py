"""The Warehouse block: where the facts of a pool go."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field


class Warehouse(Block):
    """
    Where every fact about jobs, devices and decisions is kept: a DuckDB file that any number of
    people may query while jobs run. A changed path counts from the worker's next start.

    Example:
        Find out where a pool's facts are:
        ```python
        from gpu_flows.blocks import Warehouse

        print(Warehouse.load("BLOCK_NAME").path)
        ```
    """

    _block_type_name = "GPU Warehouse"
    _block_type_slug = "gpu-warehouse"
    _block_schema_capabilities = ["gpu-facts"]

    path: str = Field(
        default="",
        title="Database file",
        description="Path of the DuckDB file. Empty means warehouse.duckdb in the gpu-flows home folder.",
    )
    sample_seconds: float = Field(
        default=1.0,
        ge=0.1,
        le=3600,
        title="Sampling period (seconds)",
        description="How often each device is read and the reading recorded.",
    )

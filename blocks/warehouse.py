"""The GPU Warehouse block: where the facts of a pool are stored."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from gpu_flows.blocks.base import PoolForm
from gpu_flows.common.urls import documentation_url


class Warehouse(PoolForm, Block):
    """
    Where every fact about jobs, devices and decisions is stored: a DuckDB file that any number of people can
    query while jobs run. A changed path takes effect when the worker starts again.

    Example:
        Find out where a pool's facts are:
        ```python
        from gpu_flows.blocks import Warehouse

        warehouse = Warehouse.load("BLOCK_NAME")
        print(warehouse.path)
        ```
    """

    _block_type_name = "GPU Warehouse"
    _block_type_slug = "gpu-warehouse"
    _block_schema_capabilities = ["gpu-facts"]
    _documentation_url = HttpUrl(documentation_url("blocks"))

    path: str = Field(default="", title="Database file")
    """Path of the DuckDB file. Empty means warehouse.duckdb in the gpu-flows home folder."""

    sample_seconds: float = Field(default=1.0, ge=0.1, le=3600, title="Sampling period (seconds)")
    """How often each device is read and the reading recorded."""

    keep_samples_days: float = Field(default=7.0, ge=0, title="Keep samples (days)")
    """How long single readings of devices are kept; 0 keeps them for ever. Their minutes are always kept, and
    answer every question about older times. A change takes effect when the worker starts again."""

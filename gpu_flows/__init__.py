"""gpu-flows turns Prefect into a GPU cluster scheduler.

Importing this package costs nothing; `gpu_flows.prefect_plugin` is what Prefect loads.
"""

__version__ = "0.5.0"

"""Decides: the model, the engine, the policies and their placement.

Knows nothing of Prefect, Docker, DuckDB, the wall clock or files: the same code
schedules a live pool and a simulated one.
"""

if __name__ == "schedulers":
    raise ImportError("import gpu_flows.schedulers, not schedulers")

"""Scheduling: the model, the engine, policies, placements, traces and the simulator.

Nothing here depends on Prefect, Docker, DuckDB or the wall clock, and only traces and cluster specs
read files, so that the same code schedules a live pool and a simulated one.
"""

if __name__ == "schedulers":
    raise ImportError("import gpu_flows.schedulers, not schedulers")

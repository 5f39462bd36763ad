"""The kinds of generated workloads, one or a few related ones per module.

A module with a `Workload` class adds a kind; nothing else needs to change. `simulation.generators`
finds them by name.
"""

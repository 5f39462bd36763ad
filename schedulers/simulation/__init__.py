"""The engine on a virtual clock: the simulator, the conditions it simulates, generated workloads, the
summary of a simulation, and bounds on what any policy could reach.

Trace files do not belong here; see `traces`.
"""

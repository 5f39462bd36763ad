"""The same engine on a virtual clock: workloads, the physics of a cluster, and what came of it."""

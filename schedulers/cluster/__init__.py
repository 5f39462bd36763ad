"""The state of the cluster: nodes and devices, who holds them, and how a cluster is described.

Here: the mutable state that the engine keeps, sets of devices, and the parser of cluster specs. Not
here: the choice of devices for a job (`placement`).
"""

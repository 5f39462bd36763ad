"""The cluster: nodes, devices, the jobs that hold them, and the parser of cluster specs.

The choice of devices for a job does not belong here; see `placement`.
"""

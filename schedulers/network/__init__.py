"""What the network costs a job: how its devices lie in the cluster, and how much slower that makes it.

`collectives` has the time of an all-reduce, `models` what training sends and computes, `network` joins them
to the slowdown of a job, and `tables` reads the figures of a network from a file.

Not here: the choice of devices (placement), jobs that share a device (prediction.interference), and which
jobs share a link at the moment (simulation.links).
"""

"""How many jobs send over a link at the same time, which divides its bandwidth among them.

A job does not send all the time. On a link with little load, a job that sends meets another one only now and
then. On a link with more load than it can carry, jobs spend all the time on sending in which they do not have
to compute. Both follow from two sums over the jobs of a link:

    load       the part of its time for which each job would use the link, if it had the link alone
    computing  the part of its time in which each job cannot send, because it has nothing to send yet
"""

from __future__ import annotations


def count_senders(jobs: int, load: float, computing: float) -> float:
    """Return how many jobs send over a link while a certain one does, itself included.

    While the link carries the load, a job sends during load / jobs of its time, if it does not meet others.
    The time of an iteration cannot be less than the link takes for all its jobs, which is `load` times what
    it is alone; without what a job must compute, the rest of it goes into sending.
    """
    if jobs < 2 or load <= 0:  # a sum of floats may come out a little below 0
        return 1.0
    sending = max(load / jobs, 1 - computing / jobs / load)
    return 1 + (jobs - 1) * min(1.0, sending)

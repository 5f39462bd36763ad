"""Everything that reads from or writes to the Prefect API on behalf of a pool.

Here: finding due runs, turning a run and its job variables into a job, the limits of the pool and its
work queues, claims and other state changes, run logs, and the gateway that the dispatcher reports
through. Not here: any decision about devices (`schedulers`) or about starting and stopping (`dispatch`).
"""

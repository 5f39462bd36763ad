"""The Prefect worker of type `gpu`, and the work pool that it serves.

Here: the worker class that Prefect starts, the lease that lets one worker act for a pool, the event
subscription, the main loop of a pool, and the status file that the command line reads. Not here:
how jobs are started and stopped (`dispatch`), and how Prefect's API is called (`prefect_api`).
"""

"""The Prefect worker of type `gpu`, and the service that runs a work pool.

Here: the worker class that Prefect starts, the pool's service and its main loop, the lease that lets one
worker act for a pool, the event subscription, the synchronization of the queue with the server, and the
status file that the command line reads. Not here: how jobs are started and stopped (`dispatch`), and how
Prefect's API is called (`prefect_api`).
"""

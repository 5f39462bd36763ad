"""The commands about jobs: submit, queue, why, logs, history, cancel, hold, release, priority and drain.

`submit` reads its options (`submit_options`), decides what to run (`requests`, `arrays`), finds the
deployment (`deployments`), creates the runs (`creation`) and waits for the worker's first word
(`acceptance`) or for their ends (`follow`). The other commands find a run by its name or id (`runs`), change
it (`changes`), and read jobs from the worker or the server (`pool_jobs`), their output (`log_reader`) and
their history in the warehouse (`records`).

Not here: the execution of jobs, which is the worker's part.
"""

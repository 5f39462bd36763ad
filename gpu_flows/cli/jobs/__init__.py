"""The commands about jobs: submit, queue, why and cancel.

`submit` reads its options (`submit_options`), decides what to run (`requests`), finds the deployment
(`deployments`), creates the runs (`creation`) and follows them (`follow`). The other commands find a run by
its name or id (`runs`), and read which jobs wait and run from the worker or the server (`pool_jobs`).

Not here: the execution of jobs, which is the worker's part.
"""

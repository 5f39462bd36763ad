"""Runtimes launch and stop attempts: `process` as processes of this machine, `docker` in containers.

`base` defines the protocol `Runtime` and the values that cross it, `routing` picks the runtime of each
launch, `attempt_store` keeps on disk what was launched, and `entry` is what a flow's interpreter runs.

To add a runtime, such as Kubernetes:

1. Write one file here, `kubernetes.py`, with a class that has the methods of `base.Runtime`.
2. Let `Launch.runtime` return its name for the launches that it serves.
3. Give it to the `RuntimeRouter` under that name, in `worker/pool_service.py`.

Not here: which job runs where and when (`schedulers`, `dispatch`), and anything that talks to Prefect
(`prefect_api`). A runtime knows an attempt, its devices and its command line, and nothing of flow runs.
"""

"""Everything that reads from or writes to the Prefect API on behalf of a pool.

In the order in which a run passes through: `due_runs` finds it, `job_builder` turns it and its job
variables into a job, `admission` applies the limits of the pool and its work queues, and `due_jobs` combines
the three. `waiting_notes` shows why it waits. `prefect_gateway` claims it (`run_states`), builds its launch
(`launch_builder`) and reports its end; `run_logs` receives its output.

Not here: any decision about devices (`schedulers`) or about starting and stopping (`dispatch`).
"""

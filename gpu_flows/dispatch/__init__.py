"""The live driver of the scheduling engine: it carries out plans and takes each job to its reported end.

Here: the dispatcher, one job's execution from plan to reported end, preemption, the per-job store that
outlives an attempt, and the gateway protocol through which jobs are claimed and reported. Not here:
Prefect (an implementation of the gateway is in `prefect_api`), and processes or containers (`runtimes`).
"""

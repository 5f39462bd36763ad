-- How long jobs took from submission to end, overall, per pool and per experiment.
create or replace view turnaround as
select scope, pool, experiment, jobs, columns('_turnaround_s$')
from job_metrics;

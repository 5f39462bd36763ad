-- How long jobs waited: turnaround - time on devices, overall, per pool and per experiment.
create or replace view queueing as
select scope, pool, experiment, jobs, columns('_queueing_s$')
from job_metrics;

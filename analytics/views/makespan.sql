-- Last end - first submission of the jobs that ran and ended, overall, per pool and per experiment.
create or replace view makespan as
select scope, pool, experiment, jobs, first_submitted, last_ended, makespan_s
from job_metrics;

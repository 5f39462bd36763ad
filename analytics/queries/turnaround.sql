-- How long does a job take from submission to end?
select scope, coalesce(pool, experiment) as name, jobs, round(columns('^(\w+)_turnaround_s$'), 1) as '\1_s'
from turnaround
order by scope = 'experiment', scope, name;

-- How long does a job wait for its devices?
select scope, coalesce(pool, experiment) as name, jobs, round(columns('^(\w+)_queueing_s$'), 1) as '\1_s'
from queueing
order by scope = 'experiment', scope, name;

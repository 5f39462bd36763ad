-- How long did it take from the first submission to the last end?
select scope, coalesce(pool, experiment) as name, jobs, first_submitted, last_ended, round(makespan_s, 1) as makespan_s
from makespan
order by scope = 'experiment', scope, first_submitted;

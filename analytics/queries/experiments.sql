-- How did the policies compare within each experiment?
-- $experiment = : only this experiment; all when empty.
select * exclude (scope, pool)
from policy_figures
where scope = 'experiment' and cast($experiment as varchar) in ('', experiment)
order by experiment, avg_turnaround_s;

-- How did the policies compare within each experiment?
-- $experiment = : only this experiment; all when empty.
select policy_figures.* exclude (scope, pool), nullif(experiments.disturbed, '') as disturbed
from policy_figures left join experiments using (experiment)
where scope = 'experiment' and cast($experiment as varchar) in ('', experiment)
order by experiment, avg_turnaround_s;

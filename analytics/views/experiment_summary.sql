-- The policies side by side within each experiment (see policy_metrics). `disturbed` says why figures do not count.
create or replace view experiment_summary as
select policy_metrics.* exclude (scope), nullif(experiments.disturbed, '') as disturbed
from policy_metrics left join experiments using (experiment)
where scope = 'experiment';

-- The policies side by side within each experiment (see policy_metrics).
create or replace view experiment_summary as
select * exclude (scope) from policy_metrics where scope = 'experiment';

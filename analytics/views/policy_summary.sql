-- The policies of each pool side by side (see policy_metrics).
create or replace view policy_summary as
select * exclude (scope, experiment) from policy_metrics where scope = 'pool';

-- Which placements were offered to waiting jobs lately, and which did they decline?
-- $limit = 20: how many to show.
select
    time,
    name,
    gpus,
    policy,
    tier,
    if(accepted, 'accepted', 'declined') as answer,
    round(columns('^(waited|patience|waited_after)_s$'), 1),
    round(slowdown, 2) as slowdown,
    round(sensitivity, 3) as sensitivity
from offer_history
order by time desc, name
limit cast($limit as bigint);

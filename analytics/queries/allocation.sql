-- For which share of the time are devices held by a job?
select pool, node, device_id, round(held_s, 1) as held_s, round(available_s, 1) as available_s,
    round(allocation_percent, 1) as allocation_percent
from allocation
order by pool nulls first, node nulls first, device_id nulls first;

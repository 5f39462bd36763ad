-- Which devices are idle now, and since when?
select pool, node, index, model, device_id, pieces.since, round(seconds(pieces.since, pieces.until), 1) as idle_s
from device_pieces as pieces
join pool_clock using (pool)
join device_available as available using (pool, device_id)
join devices using (pool, device_id, node)
where pieces.holders = 0 and pieces.until = last_fact and available.until = last_fact
order by pool, node, index;

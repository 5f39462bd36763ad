-- Who used how much energy?
select pool, coalesce(user_name, '(idle devices)') as user_name, count(distinct job_id) as jobs,
    round(sum(energy_wh) / 1000, 3) as kwh
from energy
group by pool, energy.user_name
order by pool, sum(energy_wh) desc;

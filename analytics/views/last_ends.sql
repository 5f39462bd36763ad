-- How each job ended: its last end, unless it was launched again later (by Retry in the Prefect UI).
create or replace view last_ends as
with ends as (
    select job_id, max(ended) as ended, arg_max(outcome, ended) as outcome, arg_max(detail, ended) as detail
    from job_ends
    group by job_id
),
starts as (select job_id, max(started) as started from attempts group by job_id)
select ends.job_id, ends.ended, ends.outcome, ends.detail
from ends left join starts using (job_id)
where started is null or started <= ended;

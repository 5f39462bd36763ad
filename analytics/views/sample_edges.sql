-- The times at which minutes of samples are split, so that what is computed from the pieces is the same as from the
-- samples: when a device was taken or released, and when the periods of policy_spans begin or end. Times of jobs
-- that have not ended count until they have.
create or replace view sample_edges as
with finished as materialized (
    select pool, experiment, min(submitted) as since, max(ended) as until
    from jobs left join last_ends using (job_id)
    group by pool, experiment
),
pools as (
    select pool, time from swaps
    union
    select pool, unnest([min(since), max(until)]) from finished group by pool
    union
    select pool, unnest([since, until]) from finished where experiment <> ''
)
select device_id, pools.time from pools join devices using (pool) where pools.time is not null
union
select device_id, unnest([since, until]) from device_holds;

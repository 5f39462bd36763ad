-- The last prediction of each kind (`how`) for a job that completed, beside what was measured: MiB on the device
-- where it used most, or seconds on its devices over all attempts. A time counts if it was predicted before the job
-- began; of those from its progress, the first one counts that was made when half of the job was done, or else the
-- last one before that. Later ones are easier and of less use.
--   error     value / measured - 1: below 0 if the prediction was too low
--   broken    whether the job needed more than its upper bound
create or replace view prediction_errors as
with peaks as (
    select job_id, max(peak_mb) as peak_mb
    from memory_peaks join attempt_ends using (job_id, attempt)
    where attempt_ends.outcome = 'completed'
    group by job_id
),
reports as (
    select job_id, time, max(fraction) as fraction from progress_reports group by job_id, time
)
select
    predictions.job_id,
    job_history.pool,
    job_history.name,
    coalesce(nullif(job_features.kind, ''), job_history.flow) as kind,
    predictions.time,
    quantity,
    device_model,
    how,
    version,
    value,
    upper,
    if(quantity = 'memory_mb', peak_mb, run_s) as measured,
    value / measured - 1 as error,
    measured > upper as broken
from predictions
join job_history using (job_id)
left join job_features using (job_id)
left join peaks using (job_id)
left join reports on how = 'progress' and reports.job_id = predictions.job_id and reports.time = predictions.time
where job_history.outcome = 'completed' and measured > 0
    and case
        when quantity <> 'seconds' then true
        when how = 'progress' then fraction < 1
        else predictions.time <= first_started
    end
qualify row_number() over (
    partition by job_id, quantity, how
    order by
        coalesce(fraction, 0) >= 0.5 desc,
        if(fraction >= 0.5, predictions.time, null),
        predictions.time desc,
        device_model
) = 1;

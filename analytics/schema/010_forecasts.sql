-- When jobs were expected to start and to end. A row is written when a forecast is new or has moved noticeably.
create table forecasts (
    time            timestamptz,  -- when the forecast was made
    pool            varchar,
    job_id          varchar,
    start_p50       timestamptz,  -- the median; of a job that runs, when it first started
    start_p90       timestamptz,  -- one job in ten should start later
    end_p50         timestamptz,
    end_p90         timestamptz,
    policy          varchar,      -- the policy of the pool then
    primary key (job_id, time)
);

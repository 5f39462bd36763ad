-- What was predicted of jobs, and what it can be compared with.

-- What is known of a job before it runs; predictors learn from it.
create table job_features (
    job_id          varchar primary key,
    kind            varchar,      -- jobs of one kind run alike
    parameters      varchar,      -- JSON object: the parameters of its run
    predicted       varchar       -- JSON list: what its owner did not state (memory_mb, expected_s)
);

create table predictions (
    job_id          varchar,
    time            timestamptz,
    quantity        varchar,      -- memory_mb (per device), or seconds (on the devices)
    device_model    varchar,      -- '' for any
    value           double,
    upper           double,       -- at most one job in fifty should need more (memory_mb), or one in ten (seconds)
    how             varchar,      -- stated, traced, features, history, progress, raised
    version         varchar,      -- of the learned predictor; '' if none was used
    detail          varchar,
    primary key (job_id, time, quantity, device_model)
);

create table memory_peaks (
    job_id          varchar,
    attempt         bigint,
    device_id       varchar,
    peak_mb         double,
    source          varchar,      -- nvml, or reported (by the job)
    primary key (job_id, attempt, device_id)
);

create table progress_reports (
    job_id          varchar,
    attempt         bigint,
    time            timestamptz,
    fraction        double,       -- of the whole job that is done
    remaining_s     double,
    source          varchar,      -- what it was read from, such as tqdm
    primary key (job_id, attempt, time)
);

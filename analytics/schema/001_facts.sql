-- The facts: one table per class of facts.py, with its fields as columns in the same order.
-- A table with a primary key stores each fact once; a second copy of it changes nothing.

create table jobs (
    job_id          varchar primary key,
    pool            varchar,
    name            varchar,
    flow            varchar,
    deployment      varchar,
    user_name       varchar,
    tags            varchar,      -- JSON list
    gpus            bigint,
    gpu_memory_mb   bigint,
    priority        bigint,
    deadline        timestamptz,
    expected_s      double,
    submitted       timestamptz,  -- when the run was due
    experiment      varchar       -- '' for live work
);

-- A job that is run again after its end has one row per end; see the view last_ends.
create table job_ends (
    job_id          varchar,
    ended           timestamptz,
    outcome         varchar,      -- completed, failed, crashed, cancelled, refused
    detail          varchar,
    primary key (job_id, ended)
);

create table attempts (
    job_id          varchar,
    attempt         bigint,
    policy          varchar,
    runtime         varchar,
    nodes           varchar,      -- JSON list
    planned         timestamptz,
    started         timestamptz,
    primary key (job_id, attempt)
);

create table attempt_ends (
    job_id          varchar,
    attempt         bigint,
    ended           timestamptz,
    outcome         varchar,      -- completed, failed, crashed, cancelled, preempted, lost
    exit_code       bigint,
    detail          varchar,
    primary key (job_id, attempt)
);

create table allocations (
    job_id          varchar,
    attempt         bigint,
    device_id       varchar,
    node            varchar,
    memory_mb       bigint,
    since           timestamptz,
    primary key (job_id, attempt, device_id)
);

create table decisions (
    time            timestamptz,
    pool            varchar,
    policy          varchar,
    waiting         bigint,
    running         bigint,
    started         bigint,
    took_us         double,
    error           varchar       -- '' for a plan that was carried out
);

create table swaps (
    time            timestamptz,
    pool            varchar,
    from_policy     varchar,
    to_policy       varchar,
    options         varchar,      -- JSON object
    error           varchar       -- '' for a swap that happened
);

-- A device that moves to another pool is a fact about that pool, so the pool is in the key.
create table devices (
    device_id       varchar,
    pool            varchar,
    node            varchar,
    index           bigint,
    model           varchar,
    memory_mb       bigint,
    time            timestamptz,
    primary key (device_id, pool)
);

create table device_events (
    time            timestamptz,
    device_id       varchar,
    node            varchar,
    kind            varchar,      -- healthy, sick, gone
    detail          varchar
);

create table samples (
    time            timestamptz,
    device_id       varchar,
    utilization     double,       -- 0 to 100
    memory_used_mb  double,
    power_w         double,
    temperature_c   double
);

create table experiments (
    experiment      varchar primary key,
    time            timestamptz,
    description     varchar       -- JSON object
);

-- Attempts that were requested to stop, and what attempts saved and lost.

create table departures (
    job_id          varchar,
    attempt         bigint,
    asked           timestamptz,
    gone            timestamptz,
    kind            varchar,      -- preempted, moved, resized
    policy          varchar,
    room_for        varchar,      -- JSON list of job ids
    primary key (job_id, attempt)
);

create table saved_work (
    job_id          varchar,
    attempt         bigint,
    saves           bigint,
    save_s          double,       -- the sum over all saves
    saved_bytes     bigint,       -- the size of the last save
    last_saved      timestamptz,
    last_step       bigint,
    restored        timestamptz,  -- NULL if it started from the beginning
    restore_s       double,
    restored_step   bigint,
    lost_s          double,       -- time on devices whose work was not saved
    primary key (job_id, attempt)
);

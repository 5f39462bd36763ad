-- Attempts that were asked to leave their devices, and what attempts saved and lost.

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
    save_s          double,       -- all of them together
    saved_bytes     bigint,       -- the last one
    last_saved      timestamptz,
    last_step       bigint,
    restored        timestamptz,  -- NULL: it began anew
    restore_s       double,
    restored_step   bigint,
    lost_s          double,       -- time on devices that nothing came of
    primary key (job_id, attempt)
);

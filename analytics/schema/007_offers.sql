-- What waiting jobs were offered, and the part that the network has in the time of a job.

create table offers (
    time            timestamptz,
    pool            varchar,
    job_id          varchar,
    policy          varchar,
    tier            varchar,      -- of the devices: node, rack, or cluster (across racks)
    accepted        boolean,
    waited_s        double,
    patience_s      double,       -- how long it declines this tier, from the beginning of its wait; NULL: for ever
    slowdown        double,       -- expected of these devices, against devices of one node
    sensitivity     double,       -- how much the network has hurt the job, by the policy's measure
    primary key (job_id, time, tier, accepted)
);

-- The rack of each node from this time on.
create table nodes (
    time            timestamptz,
    pool            varchar,
    node            varchar,
    rack            varchar,
    primary key (pool, node, time)
);

alter table attempt_ends add column comm_s double;  -- waiting for the network; NULL for real attempts

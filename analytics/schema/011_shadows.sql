-- Policies that plan beside the one that decides, and what another policy would have been worth.

create table shadow_decisions (
    time            timestamptz,
    pool            varchar,
    policy          varchar,      -- that decided
    shadow          varchar,
    same_jobs       boolean,      -- the shadow would have started the same jobs
    same_devices    boolean,      -- and these on the same devices
    started         bigint,       -- jobs that it would have started
    preempted       bigint,       -- jobs that it would have stopped
    agreement       double,       -- moves that both made / moves that one of them made
    took_us         double,
    skipped         bigint,       -- decisions before this one about which it was not asked, for lack of time
    error           varchar       -- why it was suspended; empty if it was not
);

create table shadow_projections (
    time            timestamptz,
    pool            varchar,
    policy          varchar,      -- in force
    shadow          varchar,      -- that was simulated; one of them is the policy in force
    jobs            bigint,
    turnaround_s    double,       -- mean of these jobs
    makespan_s      double        -- from the first submission to the last end
);

create table regrets (
    time            timestamptz,
    pool            varchar,
    since           timestamptz,  -- the jobs that were submitted from here
    until           timestamptz,  -- to here were replayed
    policy          varchar,      -- that the pool had when they were replayed
    best            varchar,      -- the one with the shortest mean turnaround
    regret_percent  double,       -- how much longer the mean turnaround is under the pool's policy
    jobs            bigint
);

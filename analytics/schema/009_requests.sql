-- What a policy knows of a job and of the pool when it decides, so that the history can be replayed.

create table job_requests (
    job_id          varchar primary key,
    queued          timestamptz,  -- when it first entered the engine's queue
    work_queue      varchar,
    queue_priority  bigint,       -- of its work queue: lower numbers come first
    kind            varchar,      -- jobs of one kind run alike
    nodes           varchar,      -- JSON list of patterns; [] for any node
    models          varchar,      -- JSON list of patterns; [] for any GPU model
    may_span_nodes  boolean,
    one_node        varchar,      -- why it must not span nodes, if that is not its owner's choice
    min_gpus        bigint,       -- 0: exactly jobs.gpus
    max_gpus        bigint,
    preemptible     boolean,
    cpus            double,       -- on each of its nodes
    ram_mb          bigint,       -- on each of its nodes
    memory_mb       bigint,       -- per device: stated or predicted
    expected_s      double,       -- time on devices: stated or predicted
    predicted       varchar       -- JSON list: which of the columns its owner did not state
);

-- Which jobs of a pool are protected from being preempted, from this time on.
create table protections (
    time             timestamptz,
    pool             varchar,
    min_run_seconds  double,
    most_preemptions bigint        -- 0: no limit
);

alter table attempt_ends add column released timestamptz;  -- when the engine freed its devices
alter table interruptions add column requeued timestamptz; -- when its end was reported, and the job could go on

-- What jobs can ask of a node beside its devices.
alter table nodes add column cpus double;    -- 0: not counted
alter table nodes add column ram_mb bigint;  -- 0: not counted
alter table nodes add column links varchar;  -- JSON list of [link, [device index, ...]]
alter table nodes add column position bigint;  -- among the nodes of the pool; decides between equal choices

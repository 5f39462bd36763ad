-- The learning curves of policies that are trained.

create table learning_points (
    training        varchar,
    seed            bigint,
    step            bigint,       -- decisions that the policy has learned from
    time            timestamptz,
    reward          double,       -- of an episode, the mean of the latest 32
    turnaround_s    double,       -- mean of the jobs of these episodes
    baseline_turnaround_s double, -- of the same jobs under the policy that it is compared with
    entropy         double,       -- how undecided the policy is
    value_loss      double,
    seconds         double,       -- since the training began
    primary key (training, seed, step)
);

-- How did the trainings of learned policies go?
-- $training = : only this one; all when empty.
select
    training,
    seed,
    max(step) as steps,
    max(seconds) as seconds,
    arg_min(reward, step) as first_reward,
    arg_max(reward, step) as last_reward,
    max(reward) as best_reward,
    arg_max(turnaround_s, step) as turnaround_s,
    arg_min(against_baseline_percent, step) as first_against_baseline_percent,
    arg_max(against_baseline_percent, step) as against_baseline_percent,
    arg_max(entropy, step) as entropy
from learning_curves
where cast($training as varchar) in ('', training)
group by training, seed
order by max(time) desc, training, seed;

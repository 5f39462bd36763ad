-- One row per point of a learning curve; see the table learning_points.
--   against_baseline_percent  how much lower (-) or higher the mean turnaround is than under the baseline
--   progress                  part of the training that is done, 0 to 1
create or replace view learning_curves as
select
    learning_points.*,
    100 * (turnaround_s / nullif(baseline_turnaround_s, 0) - 1) as against_baseline_percent,
    step / nullif(max(step) over (partition by training, seed), 0) as progress
from learning_points;

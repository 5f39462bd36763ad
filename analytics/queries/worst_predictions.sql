-- Which jobs needed much more or less than was predicted?
-- $limit = 20: how many to show.
select job_id, name, kind, quantity, how, value, upper, measured, error, broken
from prediction_errors
order by abs(ln(value / measured)) desc, job_id
limit cast($limit as bigint);

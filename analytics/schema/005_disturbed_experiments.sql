-- Why the figures of an experiment do not count, for example because the policy was changed during it.

alter table experiments add column disturbed varchar;  -- '' or NULL: they do

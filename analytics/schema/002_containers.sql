-- What a container's engine reports about its end.

alter table attempt_ends add column oom_killed boolean;
alter table attempt_ends add column peak_memory_mb double;

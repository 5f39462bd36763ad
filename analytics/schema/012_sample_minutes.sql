-- Samples of past hours, rolled up into minutes (see sample_minutes.py). The views read the minutes until
-- `rolled_until`, and the samples from then on.

-- A piece of a minute of one device, in which the device was held by the same attempts and the same policy was in
-- force, and in which each value is either known all the time or never. Values are means over time.
create table sample_minutes (
    device_id           varchar,
    since               timestamptz,
    until               timestamptz,
    samples             bigint,   -- how many were taken in it
    measured_s          double,   -- for how long their readings were valid
    utilization         double,
    memory_used_mb      double,
    power_w             double,
    temperature_c       double,
    max_utilization     double,
    max_memory_used_mb  double,
    max_power_w         double,
    min_temperature_c   double,
    max_temperature_c   double,
    is_last             boolean   -- the device's last sample of all: valid for ten seconds once another one follows
);

-- One row. Samples from `kept_since` on, and those of the two minutes before it, have not been deleted.
create table sample_clock (
    rolled_until        timestamptz,
    kept_since          timestamptz
);
insert into sample_clock values (to_timestamp(0), to_timestamp(0));

-- Minutes about which a fact arrived after they were rolled up. They will be rolled up again.
create table late_minutes (
    minute              timestamptz
);

-- Each device once, in the pool that it joined last.
create or replace view device_home as
select * from devices
qualify row_number() over (partition by device_id order by time desc, pool) = 1;

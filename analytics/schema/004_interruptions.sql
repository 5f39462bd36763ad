-- `departures` becomes `interruptions`, with the words that the views use.

alter table departures rename to interruptions;
alter table interruptions rename column asked to requested;
alter table interruptions rename column gone to released;
alter table interruptions rename column room_for to freed_for;

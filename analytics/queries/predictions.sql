-- How good were the predictions of memory and time?
select * from prediction_quality order by quantity, how, version;

-- A chunk of archived messages older than the retention.
select queue, message_id from {schema}.message_archive
where archived_at <= utc_timestamp(6) - interval :age microsecond order by archived_at, id limit :limit

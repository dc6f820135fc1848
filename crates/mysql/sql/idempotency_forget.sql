-- Removes a chunk of the oldest records.
delete from {schema}.idempotency where at <= utc_timestamp(6) - interval :age microsecond order by at limit :limit

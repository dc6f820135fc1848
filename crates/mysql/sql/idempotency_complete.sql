update {schema}.idempotency set at = if(completed, at, utc_timestamp(6)), completed = true
where name = :name and lease_token = :lease

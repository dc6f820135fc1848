update {schema}.idempotency set at = utc_timestamp(6) + interval :extension microsecond
where name = :name and lease_token = :lease and not completed

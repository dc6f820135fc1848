select completed, timestampdiff(microsecond, utc_timestamp(6), at), lease_token from {schema}.idempotency where name = :name

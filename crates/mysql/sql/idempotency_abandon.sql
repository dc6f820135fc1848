delete from {schema}.idempotency where name = :name and lease_token = :lease and not completed

select completed from {schema}.idempotency where name = :name and lease_token = :lease for update

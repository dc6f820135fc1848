-- Whether the token holds the record, which is removed unless it is completed.
-- Plan: Index Scan using idempotency_pkey on idempotency
with held as materialized (
  select key, completed from {schema}.idempotency where key = $1 and lease_token = $2 for update),
gone as (
  delete from {schema}.idempotency i using held where i.key = held.key and not held.completed)
select key from held

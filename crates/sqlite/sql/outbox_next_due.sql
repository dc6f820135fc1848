-- When the next message becomes due, or its lease expires, after ?1.
-- Plan: SEARCH outbox USING COVERING INDEX outbox_due (<expr>>?)
select min(coalesce(lease_expires_at, due_at)) as next_due from outbox where coalesce(lease_expires_at, due_at) > ?1

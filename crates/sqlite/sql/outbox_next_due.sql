-- When a message becomes due, or is given up by its taker, that cannot be taken yet.
-- Plan: SEARCH outbox USING COVERING INDEX outbox_due (<expr>>?)
select min(coalesce(lease_expires_at, due_at)) from outbox where coalesce(lease_expires_at, due_at) > ?1

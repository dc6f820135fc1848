-- Due messages that are not leased, or whose lease has expired.
-- Plan: SEARCH outbox USING INDEX outbox_due (<expr><?)
select id, queue, message_id, priority, content_type, payload, due_at from outbox
where coalesce(lease_expires_at, due_at) <= ?1
order by coalesce(lease_expires_at, due_at), id limit ?2

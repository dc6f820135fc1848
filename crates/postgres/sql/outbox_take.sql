-- Leases due messages of the outbox that are not leased.
-- Plan: Index Scan using outbox_due on outbox o_1
-- Plan: Tid Scan on outbox o
with chosen as materialized (
  select o.ctid as row_ctid from {schema}.outbox o
  where coalesce(o.lease_expires_at, o.due_at) <= {schema}.clock()
  order by coalesce(o.lease_expires_at, o.due_at), o.id limit $1 for update skip locked)
update {schema}.outbox o
set lease_token = $3, lease_expires_at = {schema}.clock() + $2::bigint * interval '1 microsecond'
from chosen
where o.ctid = chosen.row_ctid
returning o.id, o.due_at, o.queue, o.message_id, o.priority, o.content_type, o.payload

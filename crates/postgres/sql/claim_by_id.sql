-- Leases the first message, in send order, of these rows that can be claimed now.
-- Plan: Index Scan using message_pkey on message m
with chosen as materialized (
  select m.ctid as row_ctid, m.next_attempt_at as due,
         case when not $5::boolean then null
              when m.expires_at <= {schema}.clock() then 'expired'
              when m.deliveries_count >= $6 then 'max_receive_count' end as death
  from {schema}.message m
  where m.id = any ($2::bigint[]) and m.queue = $1 and not m.blocked and m.next_attempt_at <= {schema}.clock()
    and not exists (select 1 from {schema}.queue_pause where queue = $1)
  order by m.id limit 1 for update skip locked)
{lease_chosen}

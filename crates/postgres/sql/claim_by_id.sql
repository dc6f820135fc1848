-- The rows that have an id, in send order, were looked up before; of these the first that may be received now.
-- Plan: Index Scan using message_pkey on message m
with chosen as materialized (
  select m.ctid as place, m.next_attempt_at as due,
         case when not $5::boolean then null
              when m.expires_at <= {schema}.clock() then 'expired'
              when m.deliveries_count >= $6 then 'max_receive_count' end as death
  from {schema}.message m
  where m.id = any ($2::bigint[]) and m.queue = $1 and not m.blocked and m.next_attempt_at <= {schema}.clock()
    and not exists (select 1 from {schema}.queue_pause where queue = $1)
  order by m.id limit 1 for update skip locked)
update {schema}.message m
set state = 'PROCESSING',
    next_attempt_at = (select {schema}.clock() + $3::bigint * interval '1 microsecond'),
    lease_token = $4,
    acquired_at = {schema}.clock(),
    first_attempt_at = case when chosen.death is null then coalesce(m.first_attempt_at, {schema}.clock())
                            else m.first_attempt_at end,
    last_attempt_at = case when chosen.death is null then {schema}.clock() else m.last_attempt_at end,
    deliveries_count = m.deliveries_count + case when chosen.death is null then 1 else 0 end
from chosen
where m.ctid = chosen.place
returning m.id, m.message_id, m.content_type, m.headers::text as headers, m.ordering_key, m.priority, m.deliveries_count,
          m.attempts_count, m.created_at, m.first_attempt_at, m.expires_at,
          case when $5::boolean then m.dedup_key
               else (select d.dedup_key from {schema}.dead_letter d where d.id = m.id) end as dedup_key,
          m.payload, m.next_attempt_at, chosen.due, chosen.death

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
where m.ctid = chosen.row_ctid
returning m.id, m.message_id, m.content_type, m.headers::text as headers, m.ordering_key, m.priority, m.deliveries_count,
          m.attempts_count, m.created_at, m.first_attempt_at, m.expires_at,
          case when $5::boolean then m.dedup_key
               else (select d.dedup_key from {schema}.dead_letter d where d.id = m.id) end as dedup_key,
          m.payload, m.next_attempt_at, chosen.due, chosen.death

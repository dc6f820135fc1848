-- The archived messages at these positions.
-- Plan: Index Scan using message_archive_queue on message_archive
select a.message_id, a.content_type, a.headers::text as headers, a.ordering_key, a.priority,
       a.state::text = 'FAILED' as is_failed, a.payload, a.deliveries_count, a.attempts_count, a.created_at,
       a.first_attempt_at, a.last_attempt_at, a.archived_at, a.last_error
from unnest($3::timestamptz[], $4::bigint[]) as w (archived_at, id)
cross join lateral (
  select * from {schema}.message_archive
  where queue in ($1::text, $2::text) and timezone('UTC', archived_at) = timezone('UTC', w.archived_at) and id = w.id
  limit 1) a
order by a.archived_at desc, a.id desc

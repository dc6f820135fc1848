-- Acks messages without archiving them.
-- Plan: Index Scan using {primary_key} on {table} m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {queue} m
  using lock_wait, unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[])
       as s (msg_id, read_ct, last_read_at, vt)
  where m.msg_id = s.msg_id
    and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
  returning m.msg_id, m.headers),
forgotten as (
  delete from {schema}.dedup d using gone
  where {schema}.ours(gone.headers) ? 'dedup_key' and d.queue = $5
    and d.dedup_key = {schema}.ours(gone.headers)->>'dedup_key' and d.msg_id = gone.msg_id)
select msg_id, headers->>'x-pgmq-group' is not null as is_keyed from gone

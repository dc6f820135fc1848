-- Acks messages and archives them where PGMQ does, on the server, so that payloads do not travel. The state in the
-- headers tells what Postrider archived, and may remove after the retention, from what others archived for ever.
-- Plan: Index Scan using {primary_key} on {table} m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {queue} m
  using lock_wait, unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[])
       as s (msg_id, read_ct, last_read_at, vt)
  where m.msg_id = s.msg_id
    and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
  returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers),
kept as (
  insert into {archive} (msg_id, read_ct, enqueued_at, last_read_at, archived_at, vt, message, headers)
  select msg_id, read_ct, enqueued_at, last_read_at, {schema}.clock(), vt, message,
         {schema}.noted(headers, '{"state": "COMPLETED"}')
  from gone on conflict do nothing),
forgotten as (
  delete from {schema}.dedup d using gone
  where {schema}.ours(gone.headers) ? 'dedup_key' and d.queue = $5
    and d.dedup_key = {schema}.ours(gone.headers)->>'dedup_key' and d.msg_id = gone.msg_id)
select msg_id, headers->>'x-pgmq-group' is not null as is_keyed from gone

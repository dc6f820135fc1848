-- Dead-letters leased messages, with their records in the headers and new counts.
-- Plan: Index Scan using {primary_key} on {table} m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {queue} m
  using lock_wait,
        unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::text[], $7::text[])
        with ordinality as s (msg_id, read_ct, last_read_at, vt, id, reason, error, ordinal)
  where m.msg_id = s.msg_id
    and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
  returning m.*, s.id as message_id, s.reason, s.error, s.ordinal),
kept as (
  insert into {dead} (enqueued_at, vt, message, headers)
  select {schema}.clock(), {schema}.clock(), message,
         {schema}.buried(headers, $8, message_id, reason, error, read_ct, enqueued_at, last_read_at,
                         jsonb_strip_nulls(jsonb_build_object('at', {schema}.micros({schema}.clock()), 'worker', $9::text,
                                                              'error', error)))
  from gone order by ordinal),
forgotten as (
  delete from {schema}.dedup d using gone
  where {schema}.ours(gone.headers) ? 'dedup_key' and d.queue = $8
    and d.dedup_key = {schema}.ours(gone.headers)->>'dedup_key' and d.msg_id = gone.msg_id)
select msg_id, headers->>'x-pgmq-group' is not null as is_keyed from gone

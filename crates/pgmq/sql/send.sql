-- For messages with keys or lifetimes. The caller holds the stripes of their keys, and has checked that no live message
-- has their dedup keys.
with sent as (
  insert into {queue} (enqueued_at, vt, message, headers)
  select {schema}.clock(), {schema}.clock() + s.delay * interval '1 microsecond', s.message,
         case when s.lifetime is null then s.headers
              else {schema}.noted(s.headers, jsonb_build_object('expires_at',
                     {schema}.micros({schema}.clock() + s.lifetime * interval '1 microsecond'))) end
  from unnest($1::bigint[], $2::jsonb[], $3::jsonb[], $4::bigint[]) as s (delay, message, headers, lifetime)
  returning msg_id, headers),
held as (
  insert into {schema}.dedup (queue, dedup_key, message_id, msg_id)
  select $5, {schema}.ours(headers)->>'dedup_key', {schema}.ours(headers)->>'id', msg_id
  from sent where {schema}.ours(headers) ? 'dedup_key'
  on conflict (queue, dedup_key) do update set message_id = excluded.message_id, msg_id = excluded.msg_id)
select msg_id from sent

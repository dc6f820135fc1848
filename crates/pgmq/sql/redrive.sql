-- Moves dead letters back: new rows at the tails of their keys, in the order of deaths. An expiry that has passed is
-- dropped, or the message would die again unread. The caller holds the keys' stripes, and has checked that no live
-- message has its dedup key. Dead letters that were leased meanwhile stay.
-- Plan: Index Scan using {dead_primary_key} on {dead_table} m
with chosen as materialized (
  select m.msg_id from {dead} m
  where m.msg_id = any ($1::bigint[]) and not {schema}.is_leased(m.vt, m.read_ct, m.headers)
  for update skip locked),
gone as (
  delete from {dead} m using chosen, unnest($1::bigint[], $2::text[]) as s (msg_id, id)
  where m.msg_id = chosen.msg_id and s.msg_id = m.msg_id
  returning m.msg_id, m.message, {schema}.revived(m.headers, s.id) as headers),
revived as (
  insert into {queue} (enqueued_at, vt, message, headers)
  select {schema}.clock(), {schema}.clock(), message, headers from gone order by msg_id
  returning msg_id, headers),
held as (
  insert into {schema}.dedup (queue, dedup_key, message_id, msg_id)
  select $3, {schema}.ours(headers)->>'dedup_key', {schema}.ours(headers)->>'id', msg_id
  from revived where {schema}.ours(headers) ? 'dedup_key'
  on conflict (queue, dedup_key) do update set message_id = excluded.message_id, msg_id = excluded.msg_id)
select msg_id from gone

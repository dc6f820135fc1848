-- Dead-letters expired messages that are not leased: each holds a dedup key, would swallow a new message and be
-- dead-lettered by the next claim.
-- Plan: Index Scan using {primary_key} on {table} m
with over as materialized (
  select m.msg_id from {queue} m
  where m.msg_id = any ($1::bigint[])
    and {schema}.number({schema}.ours(m.headers)->'expires_at') <= {schema}.micros({schema}.clock())
    and not {schema}.is_leased(m.vt, m.read_ct, m.headers)
  for update skip locked),
gone as (delete from {queue} m using over where m.msg_id = over.msg_id returning m.*),
kept as (
  insert into {dead} (enqueued_at, vt, message, headers)
  select {schema}.clock(), {schema}.clock(), message,
         {schema}.buried(headers, $2, {schema}.ours(headers)->>'id', 'expired', null, read_ct, enqueued_at,
                         last_read_at, null)
  from gone order by msg_id),
forgotten as (
  delete from {schema}.dedup d using gone
  where d.queue = $2 and d.dedup_key = {schema}.ours(gone.headers)->>'dedup_key' and d.msg_id = gone.msg_id)
select msg_id from gone

-- Dead-letters messages that a claim has leased for that. They were not read, so only its end shows the lease. Rows
-- that other transactions have locked are left to the next claim.
-- Plan: Index Scan using {primary_key} on {table} m
with free as materialized (
  select m.msg_id, s.id, s.reason, s.error, s.ordinal
  from unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::text[], $5::text[], $6::text[])
       with ordinality as s (msg_id, read_ct, vt, id, reason, error, ordinal)
  join {queue} m on m.msg_id = s.msg_id
  where m.read_ct = s.read_ct and m.vt = s.vt and m.vt > {schema}.clock()
  for update of m skip locked),
gone as (
  delete from {queue} m using free where m.msg_id = free.msg_id
  returning m.*, free.id as message_id, free.reason, free.error, free.ordinal),
kept as (
  insert into {dead} (enqueued_at, vt, message, headers)
  select {schema}.clock(), {schema}.clock(), message,
         {schema}.buried(headers, $7, message_id, reason, error, read_ct, enqueued_at, last_read_at,
                         null)
  from gone order by ordinal),
forgotten as (
  delete from {schema}.dedup d using gone
  where {schema}.ours(gone.headers) ? 'dedup_key' and d.queue = $7
    and d.dedup_key = {schema}.ours(gone.headers)->>'dedup_key' and d.msg_id = gone.msg_id)
select msg_id from gone

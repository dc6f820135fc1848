-- Archives purged dead letters where PGMQ archives those of that queue. Rows that other transactions have locked are
-- left.
-- Plan: Index Scan using {dead_primary_key} on {dead_table} m
with free as materialized (
  select m.msg_id from {dead} m
  where m.msg_id = any ($1::bigint[]) and not {schema}.is_leased(m.vt, m.read_ct, m.headers)
  for update skip locked),
gone as (delete from {dead} m using free where m.msg_id = free.msg_id returning m.*),
kept as (
  insert into {dead_archive} (msg_id, read_ct, enqueued_at, last_read_at, archived_at, vt, message, headers)
  select msg_id, read_ct, enqueued_at, last_read_at, {schema}.clock(), vt, message,
         {schema}.noted(headers, '{"state": "FAILED"}')
  from gone where $2::boolean on conflict do nothing)
select count(*) from gone

-- Removes messages of a queue. Rows that other transactions have locked are left.
-- Plan: Index Scan using {primary_key} on {table} m
-- Plan: Index Scan using delayed_pkey on delayed
with free as materialized (
  select m.msg_id from {queue} m
  where m.msg_id = any ($1::bigint[]) and ($3::boolean or not {schema}.is_leased(m.vt, m.read_ct, m.headers))
  for update skip locked),
gone as (delete from {queue} m using free where m.msg_id = free.msg_id returning m.msg_id, m.headers),
aside as (delete from {schema}.delayed where queue = $2 and id = any ($4::bigint[]) returning id),
forgotten as (
  delete from {schema}.dedup d using gone
  where {schema}.ours(gone.headers) ? 'dedup_key' and d.queue = $2
    and d.dedup_key = {schema}.ours(gone.headers)->>'dedup_key' and d.msg_id = gone.msg_id)
select (select count(*) from gone) + (select count(*) from aside) as removed

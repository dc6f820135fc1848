-- Removes messages of a queue. The caller holds the stripes of their keys, for which others wait, and promotes
-- afterwards: so rows that other transactions have locked are left. With $3 these are returned too, as not removed. `||
-- ''` keeps the planner from walking the queue for every row.
-- Plan: Index Scan using message_pkey on message m
with free as materialized (
  select m.id from unnest($1::bigint[]) as wanted (id) join {schema}.message m on m.id = wanted.id
  where m.queue || '' = $2 and ($3::boolean or m.lease_token is null or m.next_attempt_at <= {schema}.clock())
  for update of m skip locked),
gone as (
  delete from {schema}.message m using free where m.id = free.id returning m.id, m.message_id),
forgotten as (delete from {schema}.dead_letter d using gone where d.id = gone.id),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where a.queue = regexp_replace($2, '_dlq$', '') and a.message_id = gone.message_id)
select id, true as is_gone from gone
union all
select m.id, false as is_gone from unnest($1::bigint[]) as wanted (id) join {schema}.message m on m.id = wanted.id
where $3 and m.queue || '' = $2 and m.id not in (select id from free)

-- Ends leases whose work is done, without keeping anything. When a head goes, the next of its key becomes the head if
-- the caller holds the key's stripe, and if nobody else has the row of the next; otherwise the key is written
-- down for the next claim.
-- Plan: Index Scan using message_pkey on message m
with patience as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using patience, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::boolean[])
       as s (id, lease_token, message_id, queue, is_placed)
  where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
    and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.attempts_count, m.message_id, m.ordering_key, s.is_placed),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where a.queue = regexp_replace(gone.queue, '_dlq$', '') and a.message_id = gone.message_id
    and (gone.attempts_count > 0 or gone.queue like '%\_dlq')),
forgotten as (
  delete from {schema}.dead_letter d using gone where d.id = gone.id and gone.queue like '%\_dlq'),
next as materialized (
  select gone.queue, gone.ordering_key, first.id
  from gone cross join lateral (
    select o.id, o.blocked from {schema}.message o
    where o.queue = gone.queue and o.ordering_key = gone.ordering_key and o.id <> gone.id
    order by o.id limit 1) first
  where gone.is_placed and first.blocked),
free as materialized (
  select n.id from next join {schema}.message n on n.id = next.id where n.blocked for update of n skip locked),
promoted as (
  update {schema}.message n
  set blocked = false, next_attempt_at = greatest(n.next_attempt_at, {schema}.clock())
  from free where n.id = free.id),
unplaced as (
  insert into {schema}.unplaced (queue, ordering_key)
  select gone.queue, gone.ordering_key from gone
  where gone.ordering_key is not null and gone.queue not like '%\_dlq' and not gone.is_placed
  union all
  select next.queue, next.ordering_key from next where next.id not in (select id from free))
select id, ordering_key is not null from gone

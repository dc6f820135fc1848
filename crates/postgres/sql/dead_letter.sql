-- Moves leased messages to the dead letters of their queues, each in one piece: the record, the same row under the
-- dead-letter queue's name, where it begins anew and is ordered by nothing, and the next head of its key, or a note for
-- the next claim where the key's stripe or the next one's row is taken. A message that died unread has no failed attempt
-- to note.
-- Plan: Index Scan using message_pkey on message m_1
with patience as materialized (select set_config('lock_timeout', '200ms', true)),
gone as materialized (
  select m.*, s.place, s.reason, s.error, s.is_read, s.is_placed
  from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::boolean[], $6::text[], $7::text[], $8::boolean[])
       with ordinality as s (id, lease_token, message_id, queue, is_placed, reason, error, is_read, place)
  join {schema}.message m on m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id
                         and m.queue = s.queue
  cross join patience
  where m.next_attempt_at > {schema}.clock()
  for update of m),
record as (
  insert into {schema}.dead_letter (id, message_id, queue, reason, error, deliveries_count, attempts_count, created_at,
                                    first_attempt_at, last_attempt_at, dead_at, dedup_key)
  select id, message_id, queue, reason, coalesce(error, last_error), deliveries_count, attempts_count, created_at,
         first_attempt_at, last_attempt_at, {schema}.clock(), dedup_key
  from gone order by place),
noted as (
  insert into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
  select queue, message_id, attempts_count + 1, last_attempt_at, {schema}.clock(), $9, error from gone where is_read
  on conflict (queue, message_id, attempt) do update
  set started_at = excluded.started_at, failed_at = excluded.failed_at, worker = excluded.worker,
      error = excluded.error),
moved as (
  update {schema}.message m
  set queue = gone.queue || '_dlq', blocked = false, next_attempt_at = {schema}.clock(), state = 'PENDING',
      lease_token = null, acquired_at = null, deliveries_count = 0, attempts_count = 0, created_at = {schema}.clock(),
      first_attempt_at = null, last_attempt_at = null, dedup_key = null, last_error = null
  from gone where m.id = gone.id),
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

-- Dead-letters leased messages: adds the record, renames the queue of the row, resets its counts and its order, and
-- promotes the next message of its key, or notes the key for the next claim where the stripe or the next row is locked.
-- A message that died unread has no failed attempt to note.
-- Plan: Index Scan using message_pkey on message m_1
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as materialized (
  select m.*, s.ordinal, s.reason, s.error, s.is_read, s.holds_stripe
  from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::boolean[], $6::text[], $7::text[], $8::boolean[])
       with ordinality as s (id, lease_token, message_id, queue, holds_stripe, reason, error, is_read, ordinal)
  join {schema}.message m on m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id
                         and m.queue = s.queue
  cross join lock_wait
  where m.next_attempt_at > {schema}.clock()
  for update of m),
record as (
  insert into {schema}.dead_letter (id, message_id, queue, reason, error, deliveries_count, attempts_count, created_at,
                                    first_attempt_at, last_attempt_at, dead_at, dedup_key)
  select id, message_id, queue, reason, coalesce(error, last_error), deliveries_count, attempts_count, created_at,
         first_attempt_at, last_attempt_at, {schema}.clock(), dedup_key
  from gone order by ordinal),
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
{promote_next}
select id, ordering_key is not null as is_keyed from gone

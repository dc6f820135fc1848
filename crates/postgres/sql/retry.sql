-- The head of a key stays its head until it comes back. The last ten failed attempts are kept, for live messages only.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
failed as (
  update {schema}.message m
  set state = 'RETRYABLE', next_attempt_at = {schema}.clock() + s.delay * interval '1 microsecond', lease_token = null,
      acquired_at = null, attempts_count = m.attempts_count + 1, last_error = coalesce(s.error, m.last_error)
  from lock_wait, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::bigint[], $6::text[])
       as s (id, lease_token, message_id, queue, delay, error)
  where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
    and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.message_id, m.attempts_count, m.last_attempt_at, s.error),
noted as (
  insert into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
  select queue, message_id, attempts_count, last_attempt_at, {schema}.clock(), $7, error from failed
  where queue not like '%\_dlq'
  on conflict (queue, message_id, attempt) do update
  set started_at = excluded.started_at, failed_at = excluded.failed_at, worker = excluded.worker,
      error = excluded.error),
trimmed as (
  delete from {schema}.failed_attempt a using failed
  where failed.queue not like '%\_dlq' and failed.attempts_count > 10
    and a.queue = failed.queue and a.message_id = failed.message_id and a.attempt <= failed.attempts_count - 10)
select id, false as is_keyed from failed

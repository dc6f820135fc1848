-- An ack inside a caller's transaction. The next claim after the commit promotes the next message of the key: doing so
-- here would hold the key's stripe for as long as the transaction stays open.
-- Plan: Index Scan using message_pkey on message m
with gone as (
  delete from {schema}.message m
  where m.id = $1 and m.lease_token = $2 and m.message_id = $3 and m.queue = $4 and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.priority, m.deliveries_count, m.attempts_count, m.created_at, m.first_attempt_at,
            m.last_attempt_at, m.message_id, m.ordering_key, m.content_type, m.headers, m.last_error, m.payload),
kept as (
  insert into {schema}.message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                                        first_attempt_at, last_attempt_at, archived_at, message_id, ordering_key,
                                        content_type, headers, last_error, payload)
  select id, queue, 'COMPLETED', priority, deliveries_count, attempts_count, created_at, first_attempt_at,
         last_attempt_at, {schema}.clock(), message_id, ordering_key, content_type, headers, last_error, payload
  from gone where $5::boolean),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where a.queue = regexp_replace(gone.queue, '_dlq$', '') and a.message_id = gone.message_id and not $5::boolean),
forgotten as (
  delete from {schema}.dead_letter d using gone where d.id = gone.id and gone.queue like '%\_dlq'),
unplaced as (
  insert into {schema}.unplaced (queue, ordering_key)
  select queue, ordering_key from gone where ordering_key is not null and queue not like '%\_dlq'
  returning queue),
notified as materialized (select pg_notify($6, {schema}.hint(queue)) from unplaced)
select id, (select count(*) from notified) as notified from gone

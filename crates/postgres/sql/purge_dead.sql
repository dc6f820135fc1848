-- Plan: Index Scan using message_pkey on message m
with gone as (
  delete from {schema}.message m using unnest($1::bigint[]) as wanted (id)
  where m.id = wanted.id and not (m.lease_token is not null and m.next_attempt_at > {schema}.clock())
  returning m.*),
record as (delete from {schema}.dead_letter d using gone where d.id = gone.id returning d.*),
kept as (
  insert into {schema}.message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                                        first_attempt_at, last_attempt_at, archived_at, message_id, ordering_key,
                                        content_type, headers, last_error, payload)
  select gone.id, gone.queue, 'FAILED', gone.priority, record.deliveries_count, record.attempts_count,
         record.created_at, record.first_attempt_at, record.last_attempt_at, {schema}.clock(), gone.message_id,
         gone.ordering_key, gone.content_type, gone.headers, record.error, gone.payload
  from gone join record on record.id = gone.id where $2::boolean),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where a.queue = regexp_replace(gone.queue, '_dlq$', '') and a.message_id = gone.message_id and not $2::boolean)
select id from gone

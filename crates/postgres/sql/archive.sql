-- Acks messages and archives them on the server, so that payloads do not travel. The next message of a removed head is
-- promoted if the transaction holds the key's stripe and no other transaction has locked its row; otherwise the key is
-- noted for the next claim.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using lock_wait, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::boolean[])
       as s (id, lease_token, message_id, queue, holds_stripe)
  where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
    and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.priority, m.deliveries_count, m.attempts_count, m.created_at, m.first_attempt_at,
            m.last_attempt_at, m.message_id, m.ordering_key, m.content_type, m.headers, m.last_error, m.payload, s.holds_stripe),
kept as (
  insert into {schema}.message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                                        first_attempt_at, last_attempt_at, archived_at, message_id, ordering_key,
                                        content_type, headers, last_error, payload)
  select id, queue, 'COMPLETED', priority, deliveries_count, attempts_count, created_at, first_attempt_at,
         last_attempt_at, {schema}.clock(), message_id, ordering_key, content_type, headers, last_error, payload
  from gone),
forgotten as (
  delete from {schema}.dead_letter d using gone where d.id = gone.id and gone.queue like '%\_dlq'),
{promote_next}
select id, ordering_key is not null as is_keyed from gone

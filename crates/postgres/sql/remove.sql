-- `archive.sql` without the archive.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using lock_wait, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::boolean[])
       as s (id, lease_token, message_id, queue, holds_stripe)
  where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
    and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.attempts_count, m.message_id, m.ordering_key, s.holds_stripe),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where a.queue = regexp_replace(gone.queue, '_dlq$', '') and a.message_id = gone.message_id
    and (gone.attempts_count > 0 or gone.queue like '%\_dlq')),
forgotten as (
  delete from {schema}.dead_letter d using gone where d.id = gone.id and gone.queue like '%\_dlq'),
{promote_next}
select id, ordering_key is not null as is_keyed from gone

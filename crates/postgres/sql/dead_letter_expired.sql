-- Dead-letters expired messages that are not leased. The caller holds the stripes of their keys and promotes the next
-- message of each afterwards.
-- Plan: Index Scan using message_pkey on message m_1
with dead as materialized (
  select m.* from unnest($1::bigint[]) as chosen (id) join {schema}.message m on m.id = chosen.id
  where m.expires_at <= {schema}.clock() and not (m.lease_token is not null and m.next_attempt_at > {schema}.clock())
    and m.queue not like '%\_dlq'
  for update of m skip locked),
record as (
  insert into {schema}.dead_letter (id, message_id, queue, reason, error, deliveries_count, attempts_count, created_at,
                                    first_attempt_at, last_attempt_at, dead_at, dedup_key)
  select id, message_id, queue, 'expired', last_error, deliveries_count, attempts_count, created_at, first_attempt_at,
         last_attempt_at, {schema}.clock(), dedup_key
  from dead)
update {schema}.message m
set queue = m.queue || '_dlq', blocked = false, next_attempt_at = {schema}.clock(), state = 'PENDING',
    lease_token = null, acquired_at = null, deliveries_count = 0, attempts_count = 0, created_at = {schema}.clock(),
    first_attempt_at = null, last_attempt_at = null, dedup_key = null, last_error = null
from dead where m.id = dead.id
returning m.id

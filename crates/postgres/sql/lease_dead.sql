-- Leases a message only to dead-letter it, uncounted, unless it is leased.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
chosen as materialized (
  select m.id, m.ordering_key, m.lease_token is not null and m.next_attempt_at > {schema}.clock() as is_leased
  from lock_wait, {schema}.message m
  where m.id = any ($1::bigint[]) and m.queue || '' = $2 and m.message_id = $3
  order by m.id limit 1 for update of m),
leased as (
  update {schema}.message m
  set state = 'PROCESSING', lease_token = $4, acquired_at = {schema}.clock(),
      next_attempt_at = {schema}.clock() + $5::bigint * interval '1 microsecond'
  from chosen where m.id = chosen.id and not chosen.is_leased)
select is_leased, id, ordering_key from chosen

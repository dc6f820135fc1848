-- Makes a message due that is not leased: now and not earlier, so that claims with lower bounds find it.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
chosen as materialized (
  select m.id, m.lease_token is not null and m.next_attempt_at > {schema}.clock() as is_leased
  from lock_wait, {schema}.message m
  where m.id = any ($1::bigint[]) and m.queue || '' = $2 and m.message_id = $3
  order by m.id limit 1 for update of m),
due as (
  update {schema}.message m set next_attempt_at = {schema}.clock()
  from chosen where m.id = chosen.id and not chosen.is_leased and m.next_attempt_at > {schema}.clock())
select is_leased from chosen

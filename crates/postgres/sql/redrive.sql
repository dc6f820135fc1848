-- Moves dead letters back: new rows at the tails of their keys, in the order of deaths. An expiry that has passed is
-- dropped, or the message would die again unread. The caller holds the keys' stripes. Dead letters that were leased
-- meanwhile stay, as do those whose dedup key a live message holds.
-- Plan: Index Scan using message_pkey on message m
with chosen as materialized (
  select m.id, m.priority, m.expires_at, m.message_id, m.ordering_key, d.queue, d.dedup_key, m.content_type,
         m.headers, m.payload, wanted.ordinal
  from unnest($1::bigint[]) with ordinality as wanted (id, ordinal)
  join {schema}.message m on m.id = wanted.id
  join {schema}.dead_letter d on d.id = wanted.id
  where not (m.lease_token is not null and m.next_attempt_at > {schema}.clock())
  for update of m skip locked),
revived as (
  insert into {schema}.message (queue, blocked, priority, next_attempt_at, created_at, expires_at, message_id,
                                ordering_key, dedup_key, content_type, headers, payload)
  select $2, ordering_key is not null, priority, {schema}.clock(), {schema}.clock(),
         case when expires_at > {schema}.clock() then expires_at end, message_id, ordering_key, dedup_key,
         content_type, headers, payload
  from chosen order by ordinal
  on conflict (queue, dedup_key) where dedup_key is not null do nothing
  returning message_id, dedup_key),
done as materialized (
  select chosen.id, chosen.queue, chosen.message_id from chosen
  where chosen.dedup_key is null
     or exists (select 1 from revived
                where revived.dedup_key = chosen.dedup_key and revived.message_id = chosen.message_id)),
forgotten as (delete from {schema}.dead_letter d using done where d.id = done.id),
attempts as (
  delete from {schema}.failed_attempt a using done where a.queue = done.queue and a.message_id = done.message_id),
removed as (delete from {schema}.message m using done where m.id = done.id)
select id from done

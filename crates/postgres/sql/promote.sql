-- Promotes the first message of each key that has no head. The caller holds the keys' stripes. The message becomes due
-- now and not earlier, so that claims with lower bounds find it. A row that another transaction has locked is not
-- waited for: its key is noted for the next claim, and returned.
-- Plan: Index Only Scan using message_key on message o
-- Plan: Index Scan using message_key on message h
with first as materialized (
  select k.queue, k.ordering_key, next.id
  from unnest($1::text[], $2::text[]) as k (queue, ordering_key)
  cross join lateral (select o.id from {schema}.message o
                      where o.queue = k.queue and o.ordering_key = k.ordering_key order by o.id limit 1) next
  where not exists (select 1 from {schema}.message h
                    where h.queue = k.queue and h.ordering_key = k.ordering_key and not h.blocked)),
free as materialized (
  select m.id from first join {schema}.message m on m.id = first.id where m.blocked for update of m skip locked),
promoted as (
  update {schema}.message m
  set blocked = false, next_attempt_at = greatest(m.next_attempt_at, {schema}.clock())
  from free where m.id = free.id)
insert into {schema}.unplaced (queue, ordering_key)
select queue, ordering_key from first where id not in (select id from free)
returning ordering_key

-- The first of each key becomes its head, unless the key has one. The caller holds the keys' stripes. It is
-- due from now on and not from earlier, or claims that have gone past that time would not meet it. One that somebody
-- else has locked is not waited for: its key is written down for the next claim, and comes back from here.
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

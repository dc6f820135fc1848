-- The first of each key becomes its head, unless the key has one. The caller holds the keys' stripes. It is
-- due from now on and not from earlier, or claims that have gone past that time would not meet it.
-- Plan: Index Only Scan using message_key on message o
-- Plan: Index Scan using message_key on message h
update {schema}.message m
set blocked = false, next_attempt_at = greatest(m.next_attempt_at, {schema}.clock())
from unnest($1::text[], $2::text[]) as k (queue, ordering_key)
cross join lateral (select o.id from {schema}.message o
                    where o.queue = k.queue and o.ordering_key = k.ordering_key order by o.id limit 1) first
where m.id = first.id and m.blocked
  and not exists (select 1 from {schema}.message h
                  where h.queue = k.queue and h.ordering_key = k.ordering_key and not h.blocked)
returning m.queue

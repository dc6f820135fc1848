-- The first blocked message of a key without a head. Not part of `promote.sql`, where it would be a locking read, which
-- waits for messages of the same key in open transactions of callers.
select (select o.id from {schema}.message o force index (message_key)
        where o.queue = :queue and o.ordering_key = :ordering_key and o.blocked = 1 order by o.id limit 1) as id
from dual
where not exists (select 1 from {schema}.message h force index (message_key)
                  where h.queue = :queue and h.ordering_key = :ordering_key and h.blocked = 0)

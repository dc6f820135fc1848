-- Locks stripes until the end of the transaction. Who adds to a key or removes its head holds the key's stripe. In the
-- order of the primary key, which prevents deadlocks; a separate statement, so that the next one sees what earlier
-- holders committed.
select id from {schema}.stripe force index (primary) where id in (:stripes) order by id for update

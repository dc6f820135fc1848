-- Whoever adds to a key, or takes its head away, holds the key's stripe until the end of the transaction. In the order of
-- the key, so that no two wait for each other; a statement of its own, so that the next one sees what others did before.
select id from {schema}.stripe force index (primary) where id in (:stripes) order by id for update

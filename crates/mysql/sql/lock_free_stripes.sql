-- The stripes that nobody holds, for those who must not wait: what they take away from the other keys is put in order by
-- whoever claims next.
select id from {schema}.stripe force index (primary) where id in (:stripes) order by id for update skip locked

-- Takes the free stripes. The next claim promotes the keys of the others.
select id from {schema}.stripe force index (primary) where id in (:stripes) order by id for update skip locked

-- The first of each key becomes its head. The caller holds the keys' stripes.
update {schema}.message set blocked = false where id in (:ids)

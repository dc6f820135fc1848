-- The first of each key becomes its head. The caller holds the keys' stripes.
update {schema}.message force index (primary) set blocked = false where id in (:ids)

-- Promotes the first message of each key. The caller holds the keys' stripes.
update {schema}.message force index (primary) set blocked = false where id in (:ids)

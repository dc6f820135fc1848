-- The first of each key becomes its head, unless the key has one. The caller holds the keys' stripes. A probe a key.
update {schema}.message m join (:firsts) first on first.id = m.id set m.blocked = false where m.blocked

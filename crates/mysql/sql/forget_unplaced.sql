delete from {schema}.unplaced where id in (:ids)

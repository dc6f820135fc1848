delete from {schema}.dead_letter where id in (:ids)

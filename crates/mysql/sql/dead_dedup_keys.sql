select id, dedup_key from {schema}.dead_letter where id in (:ids)

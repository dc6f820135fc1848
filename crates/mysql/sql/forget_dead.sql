-- In the multi-table form, the only one that accepts an index hint.
delete d from {schema}.dead_letter d force index (dead_letter_id) where id in (:ids) and queue <> ''

-- In the form for several tables, because only that can be told which index to use.
delete d from {schema}.dead_letter d force index (dead_letter_id) where id in (:ids) and queue <> ''

-- In the multi-table form, the only one that accepts an index hint: without one the server walks a small table, and
-- waits for every locked row.
delete m from {schema}.message m force index (primary) where :these

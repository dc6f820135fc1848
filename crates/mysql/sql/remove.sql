-- In the form for several tables, because only that can be told which index to use: without, the server walks the whole
-- table when it is small, and waits for whoever has a row of it.
delete m from {schema}.message m force index (primary) where :these

-- In the form for several tables, because only that can be told which index to use.
delete a from {schema}.failed_attempt a force index (primary) where :messages

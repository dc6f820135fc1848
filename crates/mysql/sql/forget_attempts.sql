-- In the multi-table form, the only one that accepts an index hint.
delete a from {schema}.failed_attempt a force index (primary) where :messages

-- The order of a search: newest end first, within a queue. Of an expression, so that a sweep, which asks for the time alone,
-- does not take it for an index of times and walk it from end to end.
create index message_archive_queue on {schema}.message_archive (queue, timezone('UTC', archived_at), id);
create index message_archive_message on {schema}.message_archive (message_id);

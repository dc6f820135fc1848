-- The order of a search within a queue: newest end first. On an expression, so that a sweep, which filters by time
-- alone, does not walk it from end to end.
create index message_archive_queue on {schema}.message_archive (queue, timezone('UTC', archived_at), id);
create index message_archive_message on {schema}.message_archive (message_id);

-- The order of a search: newest first, within a queue. The row number is the last part of every index.
create index message_archive_queue on message_archive (queue, archived_at);
create index message_archive_message on message_archive (message_id);

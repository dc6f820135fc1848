-- The order of a search: newest end first, within a queue. The row's number is the last part of every index.
create index message_archive_queue on message_archive (queue, archived_at);
create index message_archive_message on message_archive (message_id);

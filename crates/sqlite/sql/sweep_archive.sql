-- A chunk of the oldest rows, which are the first ones, so that a sweep costs the same whatever the size of the
-- archive.
-- Plan: SEARCH message_archive USING INTEGER PRIMARY KEY (rowid>?)
select archive_id, queue, cast(message_id as blob) as message_id, archived_at from message_archive
where archive_id > ?1 order by archive_id limit ?2

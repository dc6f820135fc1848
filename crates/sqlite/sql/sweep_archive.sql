-- The oldest rows are the first ones; only a chunk of them is looked at, so that a look costs the same however much is
-- archived.
-- Plan: SEARCH message_archive USING INTEGER PRIMARY KEY (rowid>?)
select archive_id, queue, cast(message_id as blob), archived_at from message_archive
where archive_id > ?1 order by archive_id limit ?2

-- The oldest rows are the first ones; only a chunk of them is looked at, so that a look costs the same however much is
-- archived.
-- Plan: SCAN message_archive
select archive_id, message_id from (select archive_id, message_id, archived_at from message_archive order by archive_id limit ?2)
where archived_at <= ?1

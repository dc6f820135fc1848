delete from message_archive where archive_id = ?1

insert or replace into failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)

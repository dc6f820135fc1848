-- The last ten failed attempts are kept.
delete a from {schema}.message m join {schema}.failed_attempt a on a.queue = m.queue and a.message_id = m.message_id
where m.id in (:ids) and a.attempt <= m.attempts_count - 10

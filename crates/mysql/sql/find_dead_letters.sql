select message_id from {schema}.dead_letter force index (dead_letter_queue)
where queue = :queue and (:reason is null or reason = :reason) and (:error is null or error = :error)
order by death

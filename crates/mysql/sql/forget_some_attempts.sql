-- By their whole keys, because this is done in transactions of others: there a range would be locked with what lies
-- behind it. In the form for several tables, because only that can be told which index to use.
delete a from {schema}.failed_attempt a force index (primary)
where queue = :queue and message_id = :message_id and attempt in (:attempts) and failed_at is not null

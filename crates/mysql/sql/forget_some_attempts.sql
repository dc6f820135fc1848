-- By whole keys, because it runs in transactions of callers, where a range would be locked with the gap behind it. In
-- the multi-table form, the only one that accepts an index hint.
delete a from {schema}.failed_attempt a force index (primary)
where queue = :queue and message_id = :message_id and attempt in (:attempts) and failed_at is not null

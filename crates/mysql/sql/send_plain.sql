-- Messages of one queue without keys, delays or expiry, as many as the statement is prepared for; a transaction of its
-- own. The queue of the first row is looked up: if the queue is not listed, it is null and the insert fails.
insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, content_type, headers, payload)
values ((select name from {schema}.queue where name = ?), ?, ?, utc_timestamp(6), utc_timestamp(6), ?, ?, ?):more

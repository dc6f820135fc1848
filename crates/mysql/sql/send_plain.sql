-- Messages of one queue without keys, delays or ends, as many as the statement was prepared for. It is a transaction of its
-- own. The first row asks for the queue's name: where the queue is not listed that is null, and nothing is sent.
insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, content_type, headers, payload)
values ((select name from {schema}.queue where name = ?), ?, ?, utc_timestamp(6), utc_timestamp(6), ?, ?, ?):more

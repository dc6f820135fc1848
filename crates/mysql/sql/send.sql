-- All rows in one statement. The caller holds the stripes of the keys and knows which messages are blocked.
insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, expires_at, ordering_key,
                              dedup_key, content_type, headers, payload, blocked)
values :rows

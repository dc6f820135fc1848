-- All rows in one statement. What is blocked was found out by the caller, who holds the stripes of the keys.
insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, expires_at, ordering_key,
                              dedup_key, content_type, headers, payload, blocked)
values :rows

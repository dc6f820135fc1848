-- Plan: SEARCH message USING INDEX message_dedup (queue=? AND dedup_key=?)
select message_id, id, expires_at, lease_token is not null and next_attempt_at > ?3 as is_leased, ordering_key from message
where queue = ?1 and dedup_key = ?2

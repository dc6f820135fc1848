-- Which messages go by an operator's word. Nobody's lock is waited for, since the caller holds the stripes of their keys.
-- It promotes afterwards.
select id, message_id from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and (:everything or lease_token is null or next_attempt_at <= utc_timestamp(6))
order by id :lock

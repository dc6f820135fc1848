-- Which messages go by an operator's word. One that somebody is just leasing is waited for and then left alone. The
-- caller holds the stripes of their keys and promotes afterwards.
select id, message_id from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and (:everything or lease_token is null or next_attempt_at <= utc_timestamp(6))
order by id for update

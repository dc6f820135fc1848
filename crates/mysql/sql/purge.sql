-- The messages that a purge or a deletion removes. Locked rows are skipped, because the caller holds the stripes of
-- their keys; it promotes afterwards.
select id, message_id from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and (:everything or lease_token is null or next_attempt_at <= utc_timestamp(6))
order by id :lock

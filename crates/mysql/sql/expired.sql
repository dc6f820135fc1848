-- Locks the messages that have expired and that are not leased or locked.
select id from {schema}.message force index (primary)
where id in (:ids) and expires_at <= utc_timestamp(6)
  and not (lease_token is not null and next_attempt_at > utc_timestamp(6)) and right(queue, 4) <> '_dlq'
order by id for update skip locked

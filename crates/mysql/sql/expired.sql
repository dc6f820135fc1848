-- Those of these messages that have expired and that nobody handles or is about to.
select id from {schema}.message force index (primary)
where id in (:ids) and expires_at <= utc_timestamp(6)
  and not (lease_token is not null and next_attempt_at > utc_timestamp(6)) and right(queue, 4) <> '_dlq'
order by id for update skip locked

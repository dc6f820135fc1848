update {schema}.message force index (primary) set next_attempt_at = utc_timestamp(6)
where id = :id and next_attempt_at > utc_timestamp(6)

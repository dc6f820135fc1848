update {schema}.message force index (primary) set next_attempt_at = utc_timestamp(6) + interval (:extensions) microsecond
where id in (:ids)

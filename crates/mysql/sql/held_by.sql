-- A condition: messages of one lease, while it is valid.
(id in (:ids) and lease_token = :lease and queue = :queue and next_attempt_at > utc_timestamp(6))

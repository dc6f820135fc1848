select completed, timestampdiff(microsecond, utc_timestamp(6), at) as left_micros, lease_token
from {schema}.idempotency where name = :name

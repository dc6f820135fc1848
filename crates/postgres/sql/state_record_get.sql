-- Plan: Index Scan using state_record_pkey on state_record
select sequence, key, version, created_at, expires_at, value
from {schema}.state_record where kind = $1 and key = $2 and (expires_at is null or expires_at > {schema}.clock())

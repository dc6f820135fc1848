-- Plan: Index Scan using state_record_order on state_record
select sequence, key, version, created_at, expires_at, value
from {schema}.state_record
where kind = $1 and sequence > $2 and (expires_at is null or expires_at > {schema}.clock())
order by sequence limit $3

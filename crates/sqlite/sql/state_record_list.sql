-- Plan: SEARCH state_record USING INDEX state_record_order (kind=? AND sequence>?)
select sequence, key, version, created_at, expires_at, value
from state_record where kind = ?1 and sequence > ?2 and (expires_at is null or expires_at > ?3)
order by sequence limit ?4

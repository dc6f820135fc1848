-- Plan: SEARCH state_record USING INDEX state_record_key (kind=? AND key=?)
select sequence, key, version, created_at, expires_at, value
from state_record where kind = ?1 and key = ?2 and (expires_at is null or expires_at > ?3)

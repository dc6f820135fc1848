-- Plan: SEARCH state_record USING INDEX state_record_key (kind=? AND key=?)
update state_record set version = ?4, expires_at = ?5, value = ?6
where kind = ?1 and key = ?2 and version = ?3 and (expires_at is null or expires_at > ?7)
returning sequence, key, version, created_at, expires_at, value

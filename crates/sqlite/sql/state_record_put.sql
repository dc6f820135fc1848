-- An existing record has expired: the caller has checked that.
insert into state_record (sequence, kind, key, version, created_at, expires_at, value) values (?1, ?2, ?3, ?1, ?4, ?5, ?6)
on conflict (kind, key) do update
set sequence = excluded.sequence, version = excluded.version, created_at = excluded.created_at,
    expires_at = excluded.expires_at, value = excluded.value
returning sequence, key, version, created_at, expires_at, value

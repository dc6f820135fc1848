-- Plan: Index Scan using state_record_pkey on state_record
update {schema}.state_record
set version = nextval('{schema}.state_record_change'),
    expires_at = {schema}.clock() + $5::bigint * interval '1 microsecond', value = $4
where kind = $1 and key = $2 and version = $3 and (expires_at is null or expires_at > {schema}.clock())
returning sequence, key, version, created_at, expires_at, value

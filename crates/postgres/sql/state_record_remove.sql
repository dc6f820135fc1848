-- Plan: Index Scan using state_record_pkey on state_record
delete from {schema}.state_record
where kind = $1 and key = $2 and (expires_at is null or expires_at > {schema}.clock())
returning sequence
